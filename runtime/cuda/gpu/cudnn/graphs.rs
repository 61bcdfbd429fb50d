//! Builds cuDNN's descriptors of a graph.

use super::descriptors::{Descriptor, Value};
use super::functions::Functions;
use crate::cudnn::{
    Convolution, Function, Graph, Makes, Operation, Reduction, Tensor, TensorId, TensorStorage, WIDEST,
};
use crate::driver::DriverError;
use cudarc::cudnn::sys;
use ir::DType;
use std::sync::Arc;
use sys::cudnnBackendAttributeName_t as Name;
use sys::cudnnBackendDescriptorType_t as Kind;

/// A graph's descriptors.
pub(super) struct Described {
    pub(super) graph: Descriptor,
    /// The descriptors from which the graph is made, which live as long.
    _parts: Vec<Descriptor>,
}

/// Returns the number of a tensor for cuDNN.
pub(super) fn number_of(id: TensorId) -> i64 {
    id as i64 + 1
}

/// Describes a graph. `device` sets the device for which it is.
pub(super) fn describe(
    functions: &Arc<Functions>,
    graph: &Graph,
    device: impl Fn(&Descriptor) -> Result<(), DriverError>,
) -> Result<Described, DriverError> {
    let tensors = graph.tensors.iter().enumerate();
    let tensors = tensors.map(|(id, tensor)| describe_tensor(functions, id, tensor));
    let tensors = tensors.collect::<Result<Vec<_>, _>>()?;
    let mut writer = Writer { functions, computed: graph.computed(), tensors, parts: vec![] };
    let operations = graph.operations.iter().map(|operation| writer.operation(operation));
    let operations = operations.collect::<Result<Vec<_>, _>>()?;
    let described = Descriptor::new(functions, Kind::CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)?;
    device(&described)?;
    let all: Vec<&Descriptor> = operations.iter().collect();
    described.set(Name::CUDNN_ATTR_OPERATIONGRAPH_OPS, Value::Descriptors(&all))?;
    let graph = described.finalize("a graph")?;
    let Writer { tensors, mut parts, .. } = writer;
    parts.extend(tensors);
    parts.extend(operations);
    Ok(Described { graph, _parts: parts })
}

fn describe_tensor(
    functions: &Arc<Functions>,
    id: TensorId,
    tensor: &Tensor,
) -> Result<Descriptor, DriverError> {
    let own = Descriptor::new(functions, Kind::CUDNN_BACKEND_TENSOR_DESCRIPTOR)?;
    own.set(Name::CUDNN_ATTR_TENSOR_UNIQUE_ID, Value::Integers(&[number_of(id)]))?;
    own.set(Name::CUDNN_ATTR_TENSOR_DATA_TYPE, Value::DataType(data_type(tensor.dtype)))?;
    own.set(Name::CUDNN_ATTR_TENSOR_DIMENSIONS, Value::Integers(&tensor.sizes))?;
    own.set(Name::CUDNN_ATTR_TENSOR_STRIDES, Value::Integers(&tensor.strides))?;
    let alignment = match tensor.held {
        TensorStorage::Memory { alignment, .. } => alignment,
        // Tensors between operations have no address, and numbers have no alignment of their own.
        TensorStorage::Between | TensorStorage::Number(_) => WIDEST,
    };
    own.set(Name::CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, Value::Integers(&[alignment]))?;
    match tensor.held {
        TensorStorage::Memory { .. } => {}
        TensorStorage::Between => own.set(Name::CUDNN_ATTR_TENSOR_IS_VIRTUAL, Value::Flag(true))?,
        TensorStorage::Number(_) => own.set(Name::CUDNN_ATTR_TENSOR_IS_BY_VALUE, Value::Flag(true))?,
    }
    own.finalize("a tensor")
}

struct Writer<'a> {
    functions: &'a Arc<Functions>,
    /// The type in which sums are computed.
    computed: DType,
    tensors: Vec<Descriptor>,
    /// The descriptors from which operations are made, besides tensors.
    parts: Vec<Descriptor>,
}

impl Writer<'_> {
    fn describe(&self, kind: Kind) -> Result<Descriptor, DriverError> {
        Descriptor::new(self.functions, kind)
    }

    fn tensor(&self, id: TensorId) -> Value<'_> {
        Value::Descriptor(&self.tensors[id])
    }

    fn operation(&mut self, operation: &Operation) -> Result<Descriptor, DriverError> {
        let (own, part) = match operation {
            Operation::Convolution(convolution) => {
                let windows = self.windows(convolution)?;
                (self.convolution(convolution, &windows)?, Some(windows))
            }
            Operation::Multiply { sides, out } => {
                let how = self.multiplication()?;
                (self.multiply(*sides, *out, &how)?, Some(how))
            }
            Operation::Map { function, operands, out } => {
                let how = self.function(*function)?;
                (self.map(operands, *out, &how)?, Some(how))
            }
            Operation::Reduce { reduction, from, out } => {
                let how = self.reduction(*reduction)?;
                (self.reduce(*from, *out, &how)?, Some(how))
            }
            Operation::View { from, out } => (self.view(*from, *out)?, None),
        };
        self.parts.extend(part);
        Ok(own)
    }

    fn multiplication(&self) -> Result<Descriptor, DriverError> {
        let own = self.describe(Kind::CUDNN_BACKEND_MATMUL_DESCRIPTOR)?;
        own.set(Name::CUDNN_ATTR_MATMUL_COMP_TYPE, Value::DataType(data_type(self.computed)))?;
        own.finalize("a multiplication's type")
    }

    fn multiply(
        &self,
        sides: [TensorId; 2],
        out: TensorId,
        how: &Descriptor,
    ) -> Result<Descriptor, DriverError> {
        let own = self.describe(Kind::CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)?;
        own.set(Name::CUDNN_ATTR_OPERATION_MATMUL_ADESC, self.tensor(sides[0]))?;
        own.set(Name::CUDNN_ATTR_OPERATION_MATMUL_BDESC, self.tensor(sides[1]))?;
        own.set(Name::CUDNN_ATTR_OPERATION_MATMUL_CDESC, self.tensor(out))?;
        own.set(Name::CUDNN_ATTR_OPERATION_MATMUL_DESC, Value::Descriptor(how))?;
        own.finalize("a multiplication")
    }

    fn function(&self, function: Function) -> Result<Descriptor, DriverError> {
        use sys::cudnnPointwiseMode_t as Mode;
        let (mode, computed) = match function {
            Function::Add => (Mode::CUDNN_POINTWISE_ADD, self.computed),
            Function::Subtract => (Mode::CUDNN_POINTWISE_SUB, self.computed),
            Function::Multiply => (Mode::CUDNN_POINTWISE_MUL, self.computed),
            Function::Divide => (Mode::CUDNN_POINTWISE_DIV, self.computed),
            Function::Exp => (Mode::CUDNN_POINTWISE_EXP, self.computed),
            Function::Log => (Mode::CUDNN_POINTWISE_LOG, self.computed),
            Function::Index(_) => (Mode::CUDNN_POINTWISE_GEN_INDEX, DType::I32),
            Function::AtLeast => (Mode::CUDNN_POINTWISE_CMP_GE, DType::Bool),
            Function::Select => (Mode::CUDNN_POINTWISE_BINARY_SELECT, self.computed),
        };
        let own = self.describe(Kind::CUDNN_BACKEND_POINTWISE_DESCRIPTOR)?;
        own.set(Name::CUDNN_ATTR_POINTWISE_MODE, Value::PointwiseMode(mode))?;
        own.set(Name::CUDNN_ATTR_POINTWISE_MATH_PREC, Value::DataType(data_type(computed)))?;
        if let Function::Index(dim) = function {
            own.set(Name::CUDNN_ATTR_POINTWISE_AXIS, Value::Integers(&[dim]))?;
        }
        own.finalize("a function")
    }

    fn map(&self, operands: &[TensorId], out: TensorId, how: &Descriptor) -> Result<Descriptor, DriverError> {
        let own = self.describe(Kind::CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)?;
        own.set(Name::CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, Value::Descriptor(how))?;
        let names = [
            Name::CUDNN_ATTR_OPERATION_POINTWISE_XDESC,
            Name::CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
            Name::CUDNN_ATTR_OPERATION_POINTWISE_TDESC,
        ];
        names.into_iter().zip(operands).try_for_each(|(name, &id)| own.set(name, self.tensor(id)))?;
        own.set(Name::CUDNN_ATTR_OPERATION_POINTWISE_YDESC, self.tensor(out))?;
        own.finalize("a function of tensors")
    }

    fn reduction(&self, reduction: Reduction) -> Result<Descriptor, DriverError> {
        let operator = match reduction {
            Reduction::Sum => sys::cudnnReduceTensorOp_t::CUDNN_REDUCE_TENSOR_ADD,
            Reduction::Max => sys::cudnnReduceTensorOp_t::CUDNN_REDUCE_TENSOR_MAX,
        };
        let own = self.describe(Kind::CUDNN_BACKEND_REDUCTION_DESCRIPTOR)?;
        own.set(Name::CUDNN_ATTR_REDUCTION_OPERATOR, Value::Reduction(operator))?;
        own.set(Name::CUDNN_ATTR_REDUCTION_COMP_TYPE, Value::DataType(data_type(self.computed)))?;
        own.finalize("a reduction's kind")
    }

    fn reduce(&self, from: TensorId, out: TensorId, how: &Descriptor) -> Result<Descriptor, DriverError> {
        let own = self.describe(Kind::CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR)?;
        own.set(Name::CUDNN_ATTR_OPERATION_REDUCTION_XDESC, self.tensor(from))?;
        own.set(Name::CUDNN_ATTR_OPERATION_REDUCTION_YDESC, self.tensor(out))?;
        own.set(Name::CUDNN_ATTR_OPERATION_REDUCTION_DESC, Value::Descriptor(how))?;
        own.finalize("a reduction")
    }

    fn view(&self, from: TensorId, out: TensorId) -> Result<Descriptor, DriverError> {
        let own = self.describe(Kind::CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR)?;
        own.set(Name::CUDNN_ATTR_OPERATION_RESHAPE_XDESC, self.tensor(from))?;
        own.set(Name::CUDNN_ATTR_OPERATION_RESHAPE_YDESC, self.tensor(out))?;
        own.finalize("a view")
    }

    fn windows(&self, convolution: &Convolution) -> Result<Descriptor, DriverError> {
        let own = self.describe(Kind::CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR)?;
        let dims = [convolution.strides.len() as i64];
        own.set(Name::CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, Value::Integers(&dims))?;
        own.set(Name::CUDNN_ATTR_CONVOLUTION_COMP_TYPE, Value::DataType(data_type(self.computed)))?;
        // The weight is not flipped.
        let mode = sys::cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION;
        own.set(Name::CUDNN_ATTR_CONVOLUTION_CONV_MODE, Value::ConvolutionMode(mode))?;
        let numbers = [
            (Name::CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, &convolution.strides),
            (Name::CUDNN_ATTR_CONVOLUTION_DILATIONS, &convolution.dilations),
            (Name::CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, &convolution.before),
            (Name::CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, &convolution.after),
        ];
        numbers.into_iter().try_for_each(|(name, numbers)| own.set(name, Value::Integers(numbers)))?;
        own.finalize("a convolution's windows")
    }

    fn convolution(
        &self,
        convolution: &Convolution,
        windows: &Descriptor,
    ) -> Result<Descriptor, DriverError> {
        let names = Names::of(convolution.makes);
        let own = self.describe(names.kind)?;
        own.set(names.windows, Value::Descriptor(windows))?;
        own.set(names.image, self.tensor(convolution.image))?;
        own.set(names.weight, self.tensor(convolution.weight))?;
        own.set(names.output, self.tensor(convolution.output))?;
        // The result is overwritten: the factor of its old numbers is zero.
        let factors = [(names.made, 1.0), (names.there, 0.0)];
        for (name, factor) in factors {
            let double = self.computed == DType::F64;
            own.set(name, if double { Value::Double(factor.into()) } else { Value::Single(factor) })?;
        }
        own.finalize("a convolution")
    }
}

/// cuDNN's names for the parts of a convolution.
struct Names {
    kind: Kind,
    windows: Name,
    image: Name,
    weight: Name,
    output: Name,
    made: Name,
    there: Name,
}

impl Names {
    fn of(makes: Makes) -> Self {
        match makes {
            Makes::Output => Self {
                kind: Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                windows: Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                image: Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                weight: Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                output: Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                made: Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                there: Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
            },
            Makes::Image => Self {
                kind: Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                windows: Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                image: Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                weight: Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                output: Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                made: Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                there: Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
            },
            Makes::Weight => Self {
                kind: Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                windows: Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                image: Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                weight: Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                output: Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                made: Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                there: Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
            },
        }
    }
}

/// Returns cuDNN's name of a type. Graphs have no other types.
fn data_type(dtype: DType) -> sys::cudnnDataType_t {
    match dtype {
        DType::F64 => sys::cudnnDataType_t::CUDNN_DATA_DOUBLE,
        DType::F16 => sys::cudnnDataType_t::CUDNN_DATA_HALF,
        DType::BF16 => sys::cudnnDataType_t::CUDNN_DATA_BFLOAT16,
        DType::I32 => sys::cudnnDataType_t::CUDNN_DATA_INT32,
        DType::Bool => sys::cudnnDataType_t::CUDNN_DATA_BOOLEAN,
        _ => sys::cudnnDataType_t::CUDNN_DATA_FLOAT,
    }
}
