//! What cuBLASLt is handed, each freed when it is dropped.

use super::super::blas::{Call, Columns, Finish, Problem};
use super::{Single, refused};
use crate::cuda::driver::{Address, DriverError};
use cudarc::cublaslt::{result, sys};
use ir::DType;
use std::ffi::c_void;

/// The types of a multiplication's insides.
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

    /// One and zero, of that type.
    pub(super) fn numbers(self) -> (*const c_void, *const c_void) {
        static SINGLES: [f32; 2] = [1.0, 0.0];
        static DOUBLES: [f64; 2] = [1.0, 0.0];
        match self {
            Self::Single => (std::ptr::from_ref(&SINGLES[0]).cast(), std::ptr::from_ref(&SINGLES[1]).cast()),
            Self::Double => (std::ptr::from_ref(&DOUBLES[0]).cast(), std::ptr::from_ref(&DOUBLES[1]).cast()),
        }
    }
}

/// Sums are made in f32 even where halves are multiplied.
fn compute_type(dtype: DType, single: Single) -> sys::cublasComputeType_t {
    match (dtype, single) {
        (DType::F64, _) => sys::cublasComputeType_t::CUBLAS_COMPUTE_64F,
        (DType::F32, Single::Tf32) => sys::cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32,
        _ => sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
    }
}

/// Lowering multiplies floats alone.
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
pub(super) struct Handle(pub(super) sys::cublasLtHandle_t);

impl Handle {
    /// For the device whose context is current.
    pub(super) fn new() -> Result<Self, DriverError> {
        result::create_handle().map(Self).map_err(refused("to begin with"))
    }
}

impl Drop for Handle {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: it was created once.
        let _ = unsafe { result::destroy_handle(self.0) };
    }
}

/// What is computed.
pub(super) struct Description(pub(super) sys::cublasLtMatmulDesc_t);

impl Description {
    /// Of a shape; `point` says where the rest is.
    pub(super) fn new(problem: &Problem, single: Single) -> Result<Self, DriverError> {
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        let dtype = problem.types[0];
        let made = result::create_matmul_desc(compute_type(dtype, single), Scale::of(dtype).data_type());
        let own = made.map(Self).map_err(refused("describing a multiplication"))?;
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

    /// Says where the epilogue's vector and matrix are.
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

    #[allow(unsafe_code)]
    fn set<T: Copy>(
        &self,
        attribute: sys::cublasLtMatmulDescAttributes_t,
        value: T,
    ) -> Result<(), DriverError> {
        let from = std::ptr::from_ref(&value).cast();
        // SAFETY: the description is alive; so many bytes are copied from the value. A wrong size is an error.
        unsafe { result::set_matmul_desc_attribute(self.0, attribute, from, size_of::<T>()) }
            .map_err(refused("describing a multiplication"))
    }
}

impl Drop for Description {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: it was created once.
        let _ = unsafe { result::destroy_matmul_desc(self.0) };
    }
}

/// How matrices lie.
pub(super) struct Layout(pub(super) sys::cublasLtMatrixLayout_t);

impl Layout {
    pub(super) fn new(matrices: Columns, ty: sys::cudaDataType, batch: i32) -> Result<Self, DriverError> {
        use sys::cublasLtMatrixLayoutAttribute_t as Attribute;
        let Columns { rows, columns, leading, apart } = matrices;
        let made = result::create_matrix_layout(ty, rows, columns, leading);
        let own = made.map(Self).map_err(refused("describing a matrix"))?;
        if batch > 1 {
            own.set(Attribute::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, batch)?;
            own.set(Attribute::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, apart)?;
        }
        Ok(own)
    }

    #[allow(unsafe_code)]
    fn set<T: Copy>(
        &self,
        attribute: sys::cublasLtMatrixLayoutAttribute_t,
        value: T,
    ) -> Result<(), DriverError> {
        let from = std::ptr::from_ref(&value).cast();
        // SAFETY: the layout is alive; so many bytes are copied from the value. A wrong size is an error.
        unsafe { result::set_matrix_layout_attribute(self.0, attribute, from, size_of::<T>()) }
            .map_err(refused("describing a matrix"))
    }
}

impl Drop for Layout {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: it was created once.
        let _ = unsafe { result::destroy_matrix_layout(self.0) };
    }
}

/// What an algorithm has to keep to.
pub(super) struct Preference(pub(super) sys::cublasLtMatmulPreference_t);

impl Preference {
    pub(super) fn new() -> Result<Self, DriverError> {
        result::create_matmul_pref().map(Self).map_err(refused("describing a choice"))
    }

    #[allow(unsafe_code)]
    pub(super) fn set<T: Copy>(
        &self,
        attribute: sys::cublasLtMatmulPreferenceAttributes_t,
        value: T,
    ) -> Result<(), DriverError> {
        let from = std::ptr::from_ref(&value).cast();
        // SAFETY: the preference is alive; so many bytes are copied from the value. A wrong size is an error.
        unsafe { result::set_matmul_pref_attribute(self.0, attribute, from, size_of::<T>()) }
            .map_err(refused("describing a choice"))
    }
}

impl Drop for Preference {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: it was created once.
        let _ = unsafe { result::destroy_matmul_pref(self.0) };
    }
}
