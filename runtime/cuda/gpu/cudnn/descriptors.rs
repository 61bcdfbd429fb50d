//! The handle and the descriptors of cuDNN. Each is destroyed when it is dropped.

use super::functions::{Functions, RawDescriptor, RawHandle};
use crate::driver::DriverError;
use crate::gpu::handles::Queue;
use cudarc::cudnn::sys;
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;
use sys::cudnnBackendAttributeName_t as Name;
use sys::cudnnBackendAttributeType_t as Type;
use sys::cudnnBackendDescriptorType_t as Kind;

/// cuDNN on the device whose context was current when the handle was created.
pub(super) struct Handle {
    pub(super) raw: RawHandle,
    functions: Arc<Functions>,
}

impl Handle {
    #[allow(unsafe_code)]
    pub(super) fn new(functions: &Arc<Functions>) -> Result<Self, DriverError> {
        let mut raw = ptr::null_mut();
        // SAFETY: the function writes one pointer.
        functions.check_status("creating a handle", unsafe { (functions.create)(&mut raw) })?;
        Ok(Self { raw, functions: functions.clone() })
    }

    /// Runs a plan on a queue.
    #[allow(unsafe_code)]
    pub(super) fn execute(
        &self,
        queue: &Queue,
        plan: &Descriptor,
        pack: &Descriptor,
    ) -> Result<(), DriverError> {
        let functions = &self.functions;
        // SAFETY: handle and stream are alive.
        let status = unsafe { (functions.set_stream)(self.raw, queue.0.cast()) };
        functions.check_status("on a stream", status)?;
        // SAFETY: all are alive and finalized. The plan's graph decides what it does with the addresses of the pack.
        let status = unsafe { (functions.execute)(self.raw, plan.raw, pack.raw) };
        functions.check_status("running", status)
    }
}

impl Drop for Handle {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: the handle was created once.
        let _ = unsafe { (self.functions.destroy)(self.raw) };
    }
}

/// A value of an attribute.
#[derive(Clone, Copy)]
pub(super) enum Value<'a> {
    Handle(&'a Handle),
    DataType(sys::cudnnDataType_t),
    Flag(bool),
    Integers(&'a [i64]),
    Single(f32),
    Double(f64),
    Addresses(&'a [*mut c_void]),
    ConvolutionMode(sys::cudnnConvolutionMode_t),
    HeuristicMode(sys::cudnnBackendHeurMode_t),
    PointwiseMode(sys::cudnnPointwiseMode_t),
    Reduction(sys::cudnnReduceTensorOp_t),
    Descriptor(&'a Descriptor),
    Descriptors(&'a [&'a Descriptor]),
    #[cfg(test)]
    Text(&'a str),
}

/// A descriptor of cuDNN: a set of attributes.
pub(super) struct Descriptor {
    raw: RawDescriptor,
    functions: Arc<Functions>,
}

impl Descriptor {
    #[allow(unsafe_code)]
    pub(super) fn new(functions: &Arc<Functions>, kind: Kind) -> Result<Self, DriverError> {
        let mut raw = ptr::null_mut();
        // SAFETY: the function writes one pointer.
        let status = unsafe { (functions.create_descriptor)(kind as i32, &mut raw) };
        functions.check_status(&format!("{kind:?}"), status)?;
        Ok(Self { raw, functions: functions.clone() })
    }

    /// Sets an attribute.
    pub(super) fn set(&self, name: Name, value: Value) -> Result<(), DriverError> {
        match value {
            Value::Handle(handle) => self.set_all(name, Type::CUDNN_TYPE_HANDLE, &[handle.raw]),
            Value::DataType(ty) => self.set_all(name, Type::CUDNN_TYPE_DATA_TYPE, &[ty as i32]),
            Value::Flag(flag) => self.set_all(name, Type::CUDNN_TYPE_BOOLEAN, &[flag]),
            Value::Integers(numbers) => self.set_all(name, Type::CUDNN_TYPE_INT64, numbers),
            Value::Single(number) => self.set_all(name, Type::CUDNN_TYPE_FLOAT, &[number]),
            Value::Double(number) => self.set_all(name, Type::CUDNN_TYPE_DOUBLE, &[number]),
            Value::Addresses(addresses) => self.set_all(name, Type::CUDNN_TYPE_VOID_PTR, addresses),
            Value::ConvolutionMode(mode) => {
                self.set_all(name, Type::CUDNN_TYPE_CONVOLUTION_MODE, &[mode as i32])
            }
            Value::HeuristicMode(mode) => self.set_all(name, Type::CUDNN_TYPE_HEUR_MODE, &[mode as i32]),
            Value::PointwiseMode(mode) => self.set_all(name, Type::CUDNN_TYPE_POINTWISE_MODE, &[mode as i32]),
            Value::Reduction(operator) => {
                self.set_all(name, Type::CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, &[operator as i32])
            }
            Value::Descriptor(descriptor) => {
                self.set_all(name, Type::CUDNN_TYPE_BACKEND_DESCRIPTOR, &[descriptor.raw])
            }
            Value::Descriptors(descriptors) => {
                let raw: Vec<RawDescriptor> = descriptors.iter().map(|descriptor| descriptor.raw).collect();
                self.set_all(name, Type::CUDNN_TYPE_BACKEND_DESCRIPTOR, &raw)
            }
            #[cfg(test)]
            Value::Text(text) => self.set_all(name, Type::CUDNN_TYPE_CHAR, text.as_bytes()),
        }
    }

    #[allow(unsafe_code)]
    fn set_all<T>(&self, name: Name, ty: Type, values: &[T]) -> Result<(), DriverError> {
        let count = values.len() as i64;
        // SAFETY: the descriptor is alive; `count` values of the type are read. A wrong type is an error.
        let status =
            unsafe { (self.functions.set)(self.raw, name as i32, ty as i32, count, values.as_ptr().cast()) };
        self.functions.check_status(&format!("{name:?}"), status)
    }

    /// Ends the list of attributes.
    #[allow(unsafe_code)]
    pub(super) fn finalize(self, what: &str) -> Result<Self, DriverError> {
        // SAFETY: the descriptor is alive.
        let status = unsafe { (self.functions.finalize)(self.raw) };
        self.functions.check_status(what, status)?;
        Ok(self)
    }

    /// Returns an attribute that is a number.
    pub(super) fn integer(&self, name: Name) -> Result<i64, DriverError> {
        let mut number = [0_i64];
        self.get(name, Type::CUDNN_TYPE_INT64, &mut number)?;
        Ok(number[0])
    }

    /// Returns cuDNN's numerical notes of an engine, as numbers of its enum.
    pub(super) fn notes(&self) -> Result<Vec<i32>, DriverError> {
        // There are fewer notes than this.
        let mut notes = [0_i32; 64];
        let name = Name::CUDNN_ATTR_ENGINE_NUMERICAL_NOTE;
        let count = self.get(name, Type::CUDNN_TYPE_NUMERICAL_NOTE, &mut notes)?;
        Ok(notes[..count].to_vec())
    }

    /// Returns an attribute that consists of other descriptors, at most this number of them.
    pub(super) fn descriptors(&self, name: Name, kind: Kind, most: usize) -> Result<Vec<Self>, DriverError> {
        // cuDNN fills descriptors that the caller has made.
        let made = (0..most).map(|_| Self::new(&self.functions, kind));
        let mut made = made.collect::<Result<Vec<_>, _>>()?;
        let mut raw: Vec<RawDescriptor> = made.iter().map(|descriptor| descriptor.raw).collect();
        let count = self.get(name, Type::CUDNN_TYPE_BACKEND_DESCRIPTOR, &mut raw)?;
        made.truncate(count);
        Ok(made)
    }

    /// Reads values, as many as fit. Returns their number.
    #[allow(unsafe_code)]
    fn get<T>(&self, name: Name, ty: Type, values: &mut [T]) -> Result<usize, DriverError> {
        let (room, mut count) = (values.len() as i64, 0);
        // SAFETY: the descriptor is alive; at most `room` values of the type are written. A wrong type is an error.
        let status = unsafe {
            let to = values.as_mut_ptr().cast();
            (self.functions.get)(self.raw, name as i32, ty as i32, room, &mut count, to)
        };
        self.functions.check_status(&format!("{name:?}"), status)?;
        Ok(usize::try_from(count).unwrap_or_default().min(values.len()))
    }
}

impl Drop for Descriptor {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: the descriptor was created once.
        let _ = unsafe { (self.functions.destroy_descriptor)(self.raw) };
    }
}
