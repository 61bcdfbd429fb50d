// Determinants: the product of the pivots of an LU factorization, each the largest of its column, in f64 as in the
// interpreter.

namespace det {

// A thread a matrix, small enough for registers: rows change places as soon as a larger pivot is seen.
template <i64 Count, int N, class T> DEVICE void by_thread(const T* x, T* out) {
    const i64 own = thread_index();
    if (own >= Count) return;
    double matrix[N + 1][N + 1], product = 1.0;
#pragma unroll
    for (int i = 0; i < N * N; i++) matrix[i / N][i % N] = (double)widen(x[own * N * N + i]);
#pragma unroll
    for (int column = 0; column < N; column++) {
#pragma unroll
        for (int row = column + 1; row < N; row++) {
            const bool larger = fabs(matrix[row][column]) > fabs(matrix[column][column]);
            if (larger) product = -product;
#pragma unroll
            for (int i = column; i < N; i++) {
                const double upper = matrix[column][i], lower = matrix[row][i];
                matrix[column][i] = larger ? lower : upper;
                matrix[row][i] = larger ? upper : lower;
            }
        }
        const double pivot = matrix[column][column];
        product *= pivot;
        if (pivot == 0.0) break;
#pragma unroll
        for (int row = column + 1; row < N; row++) {
            const double factor = matrix[row][column] / pivot;
#pragma unroll
            for (int i = column + 1; i < N; i++) matrix[row][i] -= factor * matrix[column][i];
        }
    }
    out[own] = narrow<T>(product);
}

// The row of the largest pivot of a column, of equals the first. No NaN is larger than a number, unless it is where the
// pivot is. Each warp finds it for itself.
template <int N> DEVICE int pivot_row(const double* matrix, int column) {
    int best = column;
    double size = -1.0;
    for (int row = column + threadIdx.x % 32; row < N; row += 32) {
        const double own = fabs(matrix[row * N + column]);
        if (row == column && own != own) size = INFINITY;
        else if (own > size) best = row, size = own;
    }
    for (int offset = 16; offset > 0; offset /= 2) {
        const int row = __shfl_xor_sync(0xffffffffu, best, offset);
        const double other = __shfl_xor_sync(0xffffffffu, size, offset);
        if (other > size || (other == size && row < best)) best = row, size = other;
    }
    return best;
}

// The determinant of a matrix that the threads of the block share, and change.
template <int N> DEVICE double determinant(double* matrix) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    double product = 1.0;
    for (int column = 0; column < N; column++) {
        const int pivot = pivot_row<N>(matrix, column);
        // The column has been read.
        __syncthreads();
        if (pivot != column) {
            product = -product;
            for (int i = column + threadIdx.x; i < N; i += blockDim.x) {
                const double upper = matrix[column * N + i];
                matrix[column * N + i] = matrix[pivot * N + i];
                matrix[pivot * N + i] = upper;
            }
            __syncthreads();
        }
        const double diagonal = matrix[column * N + column];
        product *= diagonal;
        if (diagonal == 0.0) return product;
        for (int row = column + 1 + warp; row < N; row += warps) {
            const double factor = matrix[row * N + column] / diagonal;
            for (int i = column + 1 + lane; i < N; i += 32) matrix[row * N + i] -= factor * matrix[column * N + i];
        }
        __syncthreads();
    }
    return product;
}

template <int N, class T> DEVICE void put(const T* x, double* matrix, T* out) {
    for (int i = threadIdx.x; i < N * N; i += blockDim.x) matrix[i] = (double)widen(x[(i64)blockIdx.x * N * N + i]);
    __syncthreads();
    const double product = determinant<N>(matrix);
    if (threadIdx.x == 0) out[blockIdx.x] = narrow<T>(product);
}

// A block a matrix, in shared memory.
template <int N, class T> DEVICE void by_block(const T* x, T* out) {
    SHARED(double, matrix, N * N);
    put<N>(x, matrix, out);
}

// A block a matrix, in scratch.
template <int N, class T> DEVICE void in_scratch(const T* x, double* scratch, T* out) {
    put<N>(x, scratch + (i64)blockIdx.x * N * N, out);
}

}  // namespace det
