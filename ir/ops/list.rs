//! The list of operators: the variant, the name in text and the attributes of each.

use super::*;

/// A group of operators that differ only in their name. They are one `enum`, with a variant for each name.
pub(crate) trait Kinds: Sized + Copy + 'static {
    /// Every variant with its name in text.
    const NAMES: &'static [(Self, &'static str)];
}

macro_rules! operators {
    (
        structs { $( $variant:ident($ty:path) $name:literal { $($field:ident),* } )* }
        kinds { $( $kinds:ident($kinds_ty:path) )* }
    ) => {
        /// The operator of a node with its attributes. The operands are in the node.
        #[allow(missing_docs)] // each variant is documented at its struct
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Op {
            $( $variant($ty), )*
            $( $kinds($kinds_ty), )*
        }

        $( impl From<$ty> for Op {
            fn from(op: $ty) -> Self {
                Self::$variant(op)
            }
        } )*
        $( impl From<$kinds_ty> for Op {
            fn from(op: $kinds_ty) -> Self {
                Self::$kinds(op)
            }
        } )*

        impl Op {
            /// Returns the name in text.
            pub fn name(&self) -> &'static str {
                match self {
                    $( Self::$variant(_) => $name, )*
                    $( Self::$kinds(kind) => {
                        let mut names = <$kinds_ty>::NAMES.iter();
                        names.find(|(k, _)| k == kind).expect("every kind has a name").1
                    } )*
                }
            }

            /// Returns the names of all operators, in the order of the list.
            pub fn names() -> Vec<&'static str> {
                let mut names = vec![$($name),*];
                $( names.extend(<$kinds_ty>::NAMES.iter().map(|(_, name)| *name)); )*
                names
            }

            /// Returns the names and texts of the attributes, in declaration order.
            pub fn attributes(&self) -> Vec<(&'static str, String)> {
                match self {
                    $( #[allow(unused_variables)]
                    Self::$variant(op) => vec![$( (stringify!($field), Attribute::print(&op.$field)) ),*], )*
                    $( Self::$kinds(_) => vec![], )*
                }
            }

            /// Returns the operator of that name with these attributes, which must be exactly the operator's own attributes.
            pub fn parse(name: &str, attributes: &[(String, String)]) -> Result<Self, String> {
                let find = |field: &str| {
                    let found = attributes.iter().find(|(key, _)| key == field);
                    found.map(|(_, text)| text.as_str()).ok_or_else(|| format!("`{name}` needs the attribute `{field}`"))
                };
                let only = |fields: &[&str]| match attributes.iter().find(|(key, _)| !fields.contains(&key.as_str())) {
                    Some((key, _)) => Err(format!("`{name}` has no attribute `{key}`")),
                    None => Ok(()),
                };
                match name {
                    $( $name => {
                        only(&[$(stringify!($field)),*])?;
                        type This = $ty;
                        return Ok(Self::$variant(This { $( $field: {
                            let text = find(stringify!($field))?;
                            Attribute::parse(text)
                                .ok_or_else(|| format!("`{text}` is not a value of `{name}`'s `{}`", stringify!($field)))?
                        } ),* }));
                    } )*
                    _ => {}
                }
                only(&[])?;
                $( if let Some((kind, _)) = <$kinds_ty>::NAMES.iter().find(|(_, n)| *n == name) {
                    return Ok(Self::$kinds(*kind));
                } )*
                Err(format!("there is no operator `{name}`"))
            }
        }

        impl Operator for Op {
            fn facts(&self) -> Facts {
                match self {
                    $( Self::$variant(op) => op.facts(), )*
                    $( Self::$kinds(op) => op.facts(), )*
                }
            }

            fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
                let inferred = match self {
                    $( Self::$variant(op) => op.infer(types), )*
                    $( Self::$kinds(op) => op.infer(types), )*
                };
                inferred.map_err(|error| TypeError::new(format!("{}: {error}", self.name())))
            }

            fn factors(&self, signature: &Signature) -> Factors {
                match self {
                    $( Self::$variant(op) => op.factors(signature), )*
                    $( Self::$kinds(op) => op.factors(signature), )*
                }
            }

            fn gradient(&self, b: &mut Builder, node: NodeRef, d: &[Option<ValueId>]) -> Gradients {
                match self {
                    $( Self::$variant(op) => op.gradient(b, node, d), )*
                    $( Self::$kinds(op) => op.gradient(b, node, d), )*
                }
            }

            fn cost(&self, signature: &Signature) -> Cost {
                match self {
                    $( Self::$variant(op) => op.cost(signature), )*
                    $( Self::$kinds(op) => op.cost(signature), )*
                }
            }

            fn interp(&self, cx: &Interp) -> Vec<Tensor> {
                match self {
                    $( Self::$variant(op) => op.interp(cx), )*
                    $( Self::$kinds(op) => op.interp(cx), )*
                }
            }

            fn partition(&self, b: &mut Builder, node: NodeRef) -> Result<Vec<ValueId>, TypeError> {
                match self {
                    $( Self::$variant(op) => op.partition(b, node), )*
                    $( Self::$kinds(op) => op.partition(b, node), )*
                }
            }
        }
    };
}

operators! {
    structs {
        Accumulate(step::Accumulate) "accumulate" {}
        Adagrad(optimizer::Adagrad) "adagrad" { eps }
        Adam(optimizer::Adam) "adam" { beta1, beta2, eps, decoupled }
        Adam8bit(optimizer::Adam8bit) "adam_8bit" { beta1, beta2, eps, decoupled, block }
        Addends(compression::Addends) "addends" { count }
        Attention(attention::Attention) "attention" { scale, causal }
        AttentionGrad(attention::AttentionGrad) "attention_grad" { scale, causal }
        AvgPool(pool::AvgPool) "avg_pool" { windows, count_padding }
        AvgPoolGrad(pool::AvgPoolGrad) "avg_pool_grad" { windows, count_padding }
        BatchNorm(batch_norm::BatchNorm) "batch_norm" { eps }
        BatchNormGrad(batch_norm::BatchNormGrad) "batch_norm_grad" { eps }
        BatchStatistics(batch_norm::BatchStatistics) "batch_statistics" {}
        Bitcast(elementwise::Bitcast) "bitcast" { to }
        Broadcast(shape::Broadcast) "broadcast" {}
        Cast(elementwise::Cast) "cast" { to }
        Concat(shape::Concat) "concat" { dim }
        Constant(constant::Constant) "constant" { data }
        Contract(contract::Contract) "contract" { lhs, rhs, out }
        Conv(conv::Conv) "conv" { strides, dilations, pads }
        ConvGradInput(conv::ConvGradInput) "conv_grad_input" { strides, dilations, pads }
        ConvGradWeight(conv::ConvGradWeight) "conv_grad_weight" { strides, dilations, pads }
        Copy(copy::Copy) "copy" { to }
        CrossEntropy(loss::CrossEntropy) "cross_entropy" { ignore_index, label_smoothing }
        CrossEntropyGrad(loss::CrossEntropyGrad) "cross_entropy_grad" { ignore_index, label_smoothing }
        CumulativeSum(reduce::CumulativeSum) "cumulative_sum" { dim, exclusive, reverse }
        Det(det::Det) "det" {}
        Detach(detach::Detach) "detach" {}
        Dropout(dropout::Dropout) "dropout" { ratio, id, seed, dim }
        Experts(experts::Experts) "experts" { transposed }
        ExpertsGrad(experts::ExpertsGrad) "experts_grad" {}
        Gather(indexing::Gather) "gather" { dim }
        GatherElements(indexing::GatherElements) "gather_elements" { dim }
        GatherElementsGrad(scatter::GatherElementsGrad) "gather_elements_grad" { dim }
        GatherGrad(indexing::GatherGrad) "gather_grad" { dim }
        GatherNd(indexing::GatherNd) "gather_nd" { batch_dims }
        GatherNdGrad(scatter::GatherNdGrad) "gather_nd_grad" { batch_dims }
        InTraining(batch_norm::InTraining) "in_training" {}
        Iota(constant::Iota) "iota" { dim }
        LayerNorm(norm::LayerNorm) "layer_norm" { eps }
        LayerNormGrad(norm::LayerNormGrad) "layer_norm_grad" {}
        Lion(optimizer::Lion) "lion" { beta1, beta2 }
        LogSoftmax(softmax::LogSoftmax) "log_softmax" { dim }
        MaxPool(pool::MaxPool) "max_pool" { windows }
        MaxPoolGrad(pool::MaxPoolGrad) "max_pool_grad" { windows }
        MaxPoolGradAt(pool::MaxPoolGradAt) "max_pool_grad_at" { windows }
        MaxPoolIndices(pool::MaxPoolIndices) "max_pool_indices" { windows }
        MaxPoolOffsets(pool::MaxPoolOffsets) "max_pool_offsets" { windows }
        PackBits(packing::PackBits) "pack_bits" {}
        Orthogonalize(compression::Orthogonalize) "orthogonalize" {}
        Pad(shape::Pad) "pad" { dim, before, value }
        RandomUniform(random::RandomUniform) "random_uniform" { id, seed, dim }
        Recurrent(recurrent::Recurrent) "recurrent" { cell, reverse }
        RecurrentGrad(recurrent::RecurrentGrad) "recurrent_grad" { cell, reverse }
        Reduce(reduce::Reduce) "reduce" { kind, dims, keep }
        Reshape(shape::Reshape) "reshape" {}
        RmsNorm(norm::RmsNorm) "rms_norm" { eps }
        RmsNormGrad(norm::RmsNormGrad) "rms_norm_grad" {}
        Rotary(rotary::Rotary) "rotary" { interleaved }
        ScatterElements(scatter::ScatterElements) "scatter_elements" { dim, kind }
        ScatterNd(scatter::ScatterNd) "scatter_nd" { batch_dims, kind }
        Select(elementwise::Select) "select" {}
        Sgd(optimizer::Sgd) "sgd" { momentum, nesterov }
        Slice(shape::Slice) "slice" { dim, start, step }
        Softmax(softmax::Softmax) "softmax" { dim }
        SoftmaxGrad(softmax::SoftmaxGrad) "softmax_grad" { dim }
        Splat(constant::Splat) "splat" { value }
        TopK(ranking::TopK) "top_k" { dim, count, largest }
        Transfer(transfer::Transfer) "transfer" {}
        Transpose(shape::Transpose) "transpose" { permutation }
        UnpackBits(packing::UnpackBits) "unpack_bits" {}
    }
    kinds {
        Unary(elementwise::Unary)
        Binary(elementwise::Binary)
        Compare(elementwise::Compare)
        Logical(elementwise::Logical)
        Bitwise(elementwise::Bitwise)
        Collective(collective::Collective)
    }
}
