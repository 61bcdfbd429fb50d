//! The handles of cuBLASLt: a device, a description, a layout, a preference. Each is freed when it is dropped.

use super::super::blas::{Call, Columns, Finish, Problem};
use super::Single;
use super::functions::{Functions, Raw, Status};
use crate::driver::{Address, DriverError};
use cudarc::cublaslt::sys;
use ir::DType;
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

/// The type of a multiplication's factors and sums.
#[derive(Clone, Copy)]
pub(super) enum Scale {
    Single,
    Double,
}

impl Scale {
    pub(super) fn of(dtype: DType) -> Self {
        if dtype == DType::F64 { Self::Double } else { Self::Single }
    }

    fn data_type(self) -> sys::cudaDataType {
        match self {
            Self::Single => sys::cudaDataType::CUDA_R_32F,
            Self::Double => sys::cudaDataType::CUDA_R_64F,
        }
    }

    /// Returns one and zero, in this type.
    pub(super) fn numbers(self) -> (*const c_void, *const c_void) {
        static SINGLES: [f32; 2] = [1.0, 0.0];
        static DOUBLES: [f64; 2] = [1.0, 0.0];
        match self {
            Self::Single => (std::ptr::from_ref(&SINGLES[0]).cast(), std::ptr::from_ref(&SINGLES[1]).cast()),
            Self::Double => (std::ptr::from_ref(&DOUBLES[0]).cast(), std::ptr::from_ref(&DOUBLES[1]).cast()),
        }
    }
}

/// Returns the type of sums, which are f32 even for products of halves.
fn compute_type(dtype: DType, single: Single) -> sys::cublasComputeType_t {
    match (dtype, single) {
        (DType::F64, _) => sys::cublasComputeType_t::CUBLAS_COMPUTE_64F,
        (DType::F32, Single::Tf32) => sys::cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32,
        _ => sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
    }
}

/// Returns cuBLASLt's name of a type. Lowering multiplies only floats.
pub(super) fn data_type(dtype: DType) -> sys::cudaDataType {
    match dtype {
        DType::F64 => sys::cudaDataType::CUDA_R_64F,
        DType::F16 => sys::cudaDataType::CUDA_R_16F,
        DType::BF16 => sys::cudaDataType::CUDA_R_16BF,
        _ => sys::cudaDataType::CUDA_R_32F,
    }
}

fn epilogue(finish: Finish) -> sys::cublasLtEpilogue_t {
    use sys::cublasLtEpilogue_t as Epilogue;
    match finish {
        Finish::Plain { bias: false } => Epilogue::CUBLASLT_EPILOGUE_DEFAULT,
        Finish::Plain { bias: true } => Epilogue::CUBLASLT_EPILOGUE_BIAS,
        Finish::Gelu { bias: false, aux: None } => Epilogue::CUBLASLT_EPILOGUE_GELU,
        Finish::Gelu { bias: true, aux: None } => Epilogue::CUBLASLT_EPILOGUE_GELU_BIAS,
        Finish::Gelu { bias: false, aux: Some(_) } => Epilogue::CUBLASLT_EPILOGUE_GELU_AUX,
        Finish::Gelu { bias: true, aux: Some(_) } => Epilogue::CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
        Finish::GeluGradient { .. } => Epilogue::CUBLASLT_EPILOGUE_DGELU,
        Finish::Sums { of_first: true } => Epilogue::CUBLASLT_EPILOGUE_BGRADA,
        Finish::Sums { of_first: false } => Epilogue::CUBLASLT_EPILOGUE_BGRADB,
    }
}

/// cuBLASLt on a device.
pub(super) struct Handle {
    pub(super) raw: Raw,
    functions: Arc<Functions>,
}

impl Handle {
    /// Creates a handle for the device whose context is current.
    #[allow(unsafe_code)]
    pub(super) fn new(functions: &Arc<Functions>) -> Result<Self, DriverError> {
        let mut raw = ptr::null_mut();
        // SAFETY: the function writes one pointer.
        functions.check("creating a handle", unsafe { (functions.create)(&mut raw) })?;
        Ok(Self { raw, functions: functions.clone() })
    }
}

impl Drop for Handle {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: the handle was created once.
        let _ = unsafe { (self.functions.destroy)(self.raw) };
    }
}

/// The description of a multiplication.
pub(super) struct Description {
    pub(super) raw: Raw,
    functions: Arc<Functions>,
}

impl Description {
    /// Describes a problem; [`Self::point`] adds the addresses of the epilogue.
    #[allow(unsafe_code)]
    pub(super) fn new(
        functions: &Arc<Functions>,
        problem: &Problem,
        single: Single,
    ) -> Result<Self, DriverError> {
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        let dtype = problem.types[0];
        let (compute, scale) = (compute_type(dtype, single), Scale::of(dtype).data_type());
        let mut raw = ptr::null_mut();
        // SAFETY: the function writes one pointer.
        let made = unsafe { (functions.create_description)(&mut raw, compute as u32, scale as u32) };
        functions.check(DESCRIBING, made)?;
        let own = Self { raw, functions: functions.clone() };
        let sides = [Attribute::CUBLASLT_MATMUL_DESC_TRANSA, Attribute::CUBLASLT_MATMUL_DESC_TRANSB];
        for (attribute, transposed) in sides.into_iter().zip(problem.transposed) {
            // CUBLAS_OP_N and CUBLAS_OP_T.
            own.set(attribute, i32::from(transposed))?;
        }
        own.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue(problem.finish) as u32)?;
        let leading = match problem.finish {
            Finish::Gelu { aux, .. } => aux,
            Finish::GeluGradient { aux } => Some(aux),
            Finish::Plain { .. } | Finish::Sums { .. } => None,
        };
        if let Some(leading) = leading {
            own.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, leading)?;
        }
        Ok(own)
    }

    /// Sets the addresses of the epilogue's vector and matrix.
    pub(super) fn point(&self, call: &Call) -> Result<(), DriverError> {
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        let places = [
            (Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, call.vector),
            (Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, call.aux),
        ];
        for (attribute, place) in places {
            place.map_or(Ok(()), |Address(place)| self.set(attribute, place))?;
        }
        Ok(())
    }

    fn set<T: Copy>(
        &self,
        attribute: sys::cublasLtMatmulDescAttributes_t,
        value: T,
    ) -> Result<(), DriverError> {
        let status = set(self.functions.set_description, self.raw, attribute as u32, value);
        self.functions.check(DESCRIBING, status)
    }
}

impl Drop for Description {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: the description was created once.
        let _ = unsafe { (self.functions.destroy_description)(self.raw) };
    }
}

/// The name of the calls that describe a multiplication, in errors.
const DESCRIBING: &str = "describing a multiplication";

/// Sets an attribute of a description, a layout or a preference, by the function for it.
#[allow(unsafe_code)]
fn set<T: Copy>(
    function: unsafe extern "C" fn(Raw, u32, *const c_void, usize) -> Status,
    raw: Raw,
    attribute: u32,
    value: T,
) -> Status {
    // SAFETY: `raw` is alive, and the function is for its kind; the bytes of the value are copied. A wrong size is an error.
    unsafe { function(raw, attribute, ptr::from_ref(&value).cast(), size_of::<T>()) }
}

/// The layout of matrices.
pub(super) struct Layout {
    pub(super) raw: Raw,
    functions: Arc<Functions>,
}

impl Layout {
    #[allow(unsafe_code)]
    pub(super) fn new(
        functions: &Arc<Functions>,
        matrices: Columns,
        ty: sys::cudaDataType,
        batch: i32,
    ) -> Result<Self, DriverError> {
        use sys::cublasLtMatrixLayoutAttribute_t as Attribute;
        let Columns { rows, columns, leading, apart } = matrices;
        let mut raw = ptr::null_mut();
        // SAFETY: the function writes one pointer.
        let made = unsafe { (functions.create_layout)(&mut raw, ty as u32, rows, columns, leading) };
        functions.check("describing a matrix", made)?;
        let own = Self { raw, functions: functions.clone() };
        if batch > 1 {
            own.set(Attribute::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, batch)?;
            own.set(Attribute::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, apart)?;
        }
        Ok(own)
    }

    fn set<T: Copy>(
        &self,
        attribute: sys::cublasLtMatrixLayoutAttribute_t,
        value: T,
    ) -> Result<(), DriverError> {
        let status = set(self.functions.set_layout, self.raw, attribute as u32, value);
        self.functions.check("describing a matrix", status)
    }
}

impl Drop for Layout {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: the layout was created once.
        let _ = unsafe { (self.functions.destroy_layout)(self.raw) };
    }
}

/// The conditions that an algorithm has to meet.
pub(super) struct Preference {
    pub(super) raw: Raw,
    functions: Arc<Functions>,
}

impl Preference {
    #[allow(unsafe_code)]
    pub(super) fn new(functions: &Arc<Functions>) -> Result<Self, DriverError> {
        let mut raw = ptr::null_mut();
        // SAFETY: the function writes one pointer.
        functions.check("describing a choice", unsafe { (functions.create_preference)(&mut raw) })?;
        Ok(Self { raw, functions: functions.clone() })
    }

    pub(super) fn set<T: Copy>(
        &self,
        attribute: sys::cublasLtMatmulPreferenceAttributes_t,
        value: T,
    ) -> Result<(), DriverError> {
        let status = set(self.functions.set_preference, self.raw, attribute as u32, value);
        self.functions.check("describing a choice", status)
    }
}

impl Drop for Preference {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: the preference was created once.
        let _ = unsafe { (self.functions.destroy_preference)(self.raw) };
    }
}
