// Compression of gradients: addends, and orthonormal bases by modified Gram-Schmidt in f64, as in the interpreter.

namespace compression {

// The first `Own` elements are those of `x`, the others zeros.
template <i64 Own, i64 Count, class T> DEVICE void addends(const T* x, T* out) {
    const i64 i = thread_index();
    if (i < Count) out[i] = i < Own ? x[i] : narrow<T>(0.0f);
}

// The sign of a row in the column that is tried in the place of another.
DEVICE double sign(u32 row, u32 column, u32 attempt) {
    u32 bits = row * 0x9E3779B1u + column * 0x85EBCA77u + attempt * 0xC2B2AE3Du;
    bits = (bits ^ bits >> 16) * 0x7FEB352Du;
    bits = (bits ^ bits >> 15) * 0x846CA68Bu;
    return ((bits ^ bits >> 16) & 1) == 0 ? 1.0 : -1.0;
}

template <i64 M> DEVICE double dot(const double* x, const double* y) {
    double sum = 0.0;
    for (i64 i = threadIdx.x; i < M; i += blockDim.x) sum += x[i] * y[i];
    return sum_over_block(sum);
}

// Takes from a column its part in the space of the columns before it, and gives it the length 1. Whether more than rounding was left.
template <i64 M> DEVICE bool rest(const double* basis, int columns, double* column, double epsilon) {
    for (int pass = 0; pass < 2; pass++) {
        const double before = sqrt(dot<M>(column, column));
        for (int k = 0; k < columns; k++) {
            const double part = dot<M>(basis + k * M, column);
            for (i64 i = threadIdx.x; i < M; i += blockDim.x) column[i] -= part * basis[k * M + i];
        }
        const double length = sqrt(dot<M>(column, column));
        if (!(length > epsilon * before && length < INFINITY)) return false;
        for (i64 i = threadIdx.x; i < M; i += blockDim.x) column[i] /= length;
    }
    return true;
}

// A block a matrix of `M` rows and `R` columns; the columns lie one after the other in scratch. A thread reads and writes the same rows
// of all columns, so no thread waits for the elements of another.
template <i64 M, int R, int Attempts, class T>
DEVICE void orthogonalize(const T* x, double* scratch, T* out, double epsilon) {
    double* const columns = scratch + (i64)blockIdx.x * (M * R);
    x += (i64)blockIdx.x * (M * R);
    out += (i64)blockIdx.x * (M * R);
    for (int j = 0; j < R; j++) {
        double* const own = columns + j * M;
        for (i64 i = threadIdx.x; i < M; i += blockDim.x) own[i] = (double)widen(x[i * R + j]);
        bool fits = rest<M>(columns, j, own, epsilon);
        for (int attempt = 1; !fits && attempt <= Attempts; attempt++) {
            for (i64 i = threadIdx.x; i < M; i += blockDim.x) own[i] = sign((u32)i, (u32)j, (u32)attempt);
            fits = rest<M>(columns, j, own, epsilon);
        }
        for (i64 i = threadIdx.x; i < M; i += blockDim.x) {
            if (!fits) own[i] = 0.0;
            out[i * R + j] = narrow<T>(own[i]);
        }
    }
}

}  // namespace compression
