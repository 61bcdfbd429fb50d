//! The decoding of attributes, including the subgraphs of control-flow operators.

use super::attribute::{self, kind_name};
use super::build::{Builder, DEPTH_LIMIT};
use super::scope::Scope;
use super::{Attribute, Graph, SparseTensor, types};
use crate::error::{Problem, quoted};
use crate::proto::{AttributeProto, AttributeType, GraphProto, SparseTensorProto, TensorProto};
use crate::tensor::data::{self, tensor};
use crate::tensor::{Tensor, TensorSource};

impl<'a> Builder<'a> {
    /// Decodes an attribute. `None` if it refers to an attribute that the caller left out.
    pub(super) fn attribute(
        &mut self,
        proto: &'a AttributeProto,
        scope: &mut Scope<'a>,
    ) -> Result<Option<Attribute>, Problem> {
        let name = proto.name.as_deref().unwrap_or_default();
        if let Some(reference) = proto.ref_attr_name.as_deref().filter(|reference| !reference.is_empty()) {
            return self.referred(proto, reference, scope);
        }
        let missing = || Problem::new(format!("attribute {} has no value", quoted(name)));
        let kind = attribute::kind_of(proto).map_err(Problem::new)?;
        self.charge_list(proto, scope);
        Ok(Some(match kind {
            AttributeType::Undefined => return Err(missing()),
            AttributeType::Float => Attribute::Float(proto.f.unwrap_or_default()),
            AttributeType::Int => Attribute::Int(proto.i.unwrap_or_default()),
            AttributeType::String => {
                Attribute::String(attribute::text(proto.s.as_deref().unwrap_or_default(), name)?)
            }
            AttributeType::Tensor => {
                let tensor = proto.t.as_ref().ok_or_else(missing)?;
                Attribute::Tensor(self.attribute_tensor(tensor, name, scope)?)
            }
            AttributeType::Graph => {
                let graph = proto.g.as_ref().ok_or_else(missing)?;
                Attribute::Graph(Box::new(self.subgraph(graph, scope)?))
            }
            AttributeType::SparseTensor => {
                let sparse = proto.sparse_tensor.as_ref().ok_or_else(missing)?;
                Attribute::Sparse(Box::new(self.sparse(sparse, name, scope)?))
            }
            AttributeType::TypeProto => {
                let ty = types::decode(proto.tp.as_ref().ok_or_else(missing)?);
                Attribute::Type(ty.map_err(|why| Problem::new(format!("attribute {} {why}", quoted(name))))?)
            }
            AttributeType::Floats => Attribute::Floats(proto.floats.clone()),
            AttributeType::Ints => Attribute::Ints(proto.ints.clone()),
            AttributeType::Strings => {
                Attribute::Strings(each(&proto.strings, |bytes| attribute::text(bytes, name))?)
            }
            AttributeType::Tensors => {
                Attribute::Tensors(each(&proto.tensors, |tensor| self.attribute_tensor(tensor, name, scope))?)
            }
            AttributeType::Graphs => {
                Attribute::Graphs(each(&proto.graphs, |graph| self.subgraph(graph, scope))?)
            }
            AttributeType::SparseTensors => {
                Attribute::Sparses(each(&proto.sparse_tensors, |sparse| self.sparse(sparse, name, scope))?)
            }
            AttributeType::TypeProtos => Attribute::Types(each(&proto.type_protos, |ty| {
                types::decode(ty).map_err(|why| Problem::new(format!("attribute {} {why}", quoted(name))))
            })?),
        }))
    }

    fn attribute_tensor(
        &mut self,
        proto: &TensorProto,
        name: &str,
        scope: &Scope<'a>,
    ) -> Result<Tensor, Problem> {
        let inner = proto.name.as_deref().filter(|inner| !inner.is_empty()).unwrap_or(name);
        self.charge_tensor(proto, scope);
        tensor(proto, inner, TensorSource::Inner, self.files)
    }

    /// Returns the value of an attribute of the surrounding function.
    fn referred(
        &mut self,
        proto: &AttributeProto,
        reference: &str,
        scope: &Scope<'a>,
    ) -> Result<Option<Attribute>, Problem> {
        let name = quoted(proto.name.as_deref().unwrap_or_default());
        let Some(call) = &scope.call else {
            let message =
                format!("attribute {name} refers to an attribute {} of a function", quoted(reference));
            return Err(Problem::new(message + ", and its node is not in a function"));
        };
        let Some(value) = call.attributes.get(reference) else {
            let function = &call.function;
            let message = format!(
                "attribute {name} refers to the attribute {}, and function {function} does not have it",
                quoted(reference)
            );
            return Err(Problem::new(message));
        };
        let Some(value) = value else { return Ok(None) };
        let wanted = AttributeType::try_from(proto.r#type.unwrap_or(0)).unwrap_or(AttributeType::Undefined);
        if wanted != AttributeType::Undefined && wanted != value.proto_type() {
            let (wanted, found) = (kind_name(wanted), value.kind());
            return Err(Problem::new(format!(
                "attribute {name} is declared as {wanted} and refers to an attribute of type {found}"
            )));
        }
        self.charge(value.weight());
        Ok(Some(value.clone()))
    }

    fn sparse(
        &mut self,
        proto: &SparseTensorProto,
        name: &str,
        scope: &Scope<'a>,
    ) -> Result<SparseTensor, Problem> {
        let missing = |part: &str| {
            Problem::new(format!("attribute {} is a sparse tensor, and its {part} are missing", quoted(name)))
        };
        let values = proto.values.as_ref().ok_or_else(|| missing("values"))?;
        let indices = proto.indices.as_ref().ok_or_else(|| missing("indices"))?;
        let dims = data::dims(&proto.dims);
        Ok(SparseTensor {
            dims: dims.map_err(|why| Problem::new(format!("attribute {} {why}", quoted(name))))?,
            values: self.attribute_tensor(values, name, scope)?,
            indices: self.attribute_tensor(indices, name, scope)?,
        })
    }

    /// Builds the body of a control-flow operator.
    fn subgraph(&mut self, proto: &'a GraphProto, scope: &mut Scope<'a>) -> Result<Graph, Problem> {
        if scope.depth >= DEPTH_LIMIT {
            return Err(Problem::new(format!(
                "graphs and functions are nested more than {DEPTH_LIMIT} levels deep"
            )));
        }
        self.declare_subgraph_names(proto, scope);
        let around = std::mem::replace(&mut scope.in_subgraph, true);
        scope.depth += 1;
        let graph = self.graph(proto, scope);
        scope.depth -= 1;
        scope.in_subgraph = around;
        if let Some(names) = &mut scope.names {
            names.pop();
        }
        Ok(graph)
    }

    fn charge_list(&mut self, proto: &AttributeProto, scope: &Scope<'a>) {
        if scope.call.is_some() {
            let strings: usize = proto.strings.iter().map(|text| 24 + text.len()).sum();
            let text = proto.s.as_ref().map_or(0, |text| text.len());
            let _ = self.charge(8 * (proto.floats.len() + proto.ints.len()) + strings + text);
        }
    }
}

fn each<'p, P, T>(
    list: &'p [P],
    convert: impl FnMut(&'p P) -> Result<T, Problem>,
) -> Result<Vec<T>, Problem> {
    list.iter().map(convert).collect()
}
