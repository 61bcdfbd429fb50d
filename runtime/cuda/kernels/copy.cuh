// Copies between layouts, and sums over microbatches. Both are kernels of two kinds: `move` where a thread's elements are
// neighbours in the result and lie evenly in the source, `transpose` where neighbours of the source are far apart in the result.

namespace copying {

// Writes `x`, or adds it to what is there.
template <int N, class T> DEVICE void put(T* to, Pack<T, N> x, i64 adds) {
    if (adds) {
        const Pack<T, N> there = load<N>(to);
        #pragma unroll
        for (int e = 0; e < N; e++) x.at[e] = narrow<T>(widen(there.at[e]) + widen(x.at[e]));
    }
    store(to, x);
}

// `to[i] = from[i]`, or `to[i] += from[i]` if `adds`, for the elements of two layouts, `N` a thread. The layouts count `N`
// elements as one. These are neighbours in the result; in the source they are `STEP` apart, and `R` are read at once.
template <class From, class To, class I, int N, int R, i64 STEP, class T> DEVICE void move(const T* from, T* to, i64 adds) {
    const I i = (I)thread_index();
    if (i >= (I)From::size) return;
    from += From::at(i);
    Pack<T, N> x;
    if constexpr (R == N) {
        x = load<N>(from);
    } else {
        #pragma unroll
        for (int e = 0; e < N; e += R) {
            const Pack<T, R> part = load<R>(from + e * STEP);
            #pragma unroll
            for (int r = 0; r < R; r++) x.at[e + r] = part.at[r];
        }
    }
    put(to + To::at(i), x, adds);
}

constexpr int WARPS = 8;

// Matrices of `A` times `B` elements: neighbours along `A` are neighbours in the source, neighbours along `B` in the result.
// `FROM_B` and `TO_A` are the distances of the others. `From` and `To` say where each matrix begins. A block of `WARPS`
// warps takes a square tile through shared memory, so that both reads and writes are of neighbours: of elements under 4 bytes
// two a thread, unless sizes or strides are odd (not `READS` or not `WRITES`).
//
// A row of the tile has an odd number of elements: elements of a column are in different banks.
template <class From, class To, i64 A, i64 B, i64 FROM_B, i64 TO_A, bool READS, bool WRITES, class T>
DEVICE void transpose(const T* from, T* to, i64 adds) {
    constexpr int P = sizeof(T) < 4 ? 2 : 1, SIDE = 32 * P, ROW = SIDE + 1, OWN = SIDE / WARPS;
    constexpr i64 ACROSS = (A + SIDE - 1) / SIDE, DOWN = (B + SIDE - 1) / SIDE;
    SHARED(T, tile, SIDE * ROW);
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const i64 block = blockIdx.x, matrix = block / (ACROSS * DOWN);
    const i64 first_a = block % ACROSS * SIDE, first_b = block / ACROSS % DOWN * SIDE;
    from += From::at(matrix) + first_b * FROM_B + first_a;
    to += To::at(matrix) + first_a * TO_A + first_b;
    // Elements of the tile that are there.
    const i64 left_a = A - first_a, left_b = B - first_b;

    // All reads begin before the first is waited for.
    Pack<T, P> own[OWN] = {};
    #pragma unroll
    for (int i = 0; i < OWN; i++) {
        const int b = i * WARPS + warp;
        if (b >= left_b) continue;
        if constexpr (READS) {
            if (lane * P < left_a) own[i] = load<P>(from + b * FROM_B + lane * P);
        } else {
            for (int p = 0; p < P; p++)
                if (p * 32 + lane < left_a) own[i].at[p] = from[b * FROM_B + p * 32 + lane];
        }
    }
    #pragma unroll
    for (int i = 0; i < OWN; i++)
        for (int p = 0; p < P; p++)
            tile[(i * WARPS + warp) * ROW + (READS ? lane * P + p : p * 32 + lane)] = own[i].at[p];
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < OWN; i++) {
        const int a = i * WARPS + warp;
        if (a >= left_a) continue;
        if constexpr (WRITES) {
            Pack<T, P> x;
            for (int p = 0; p < P; p++) x.at[p] = tile[(lane * P + p) * ROW + a];
            if (lane * P < left_b) put(to + a * TO_A + lane * P, x, adds);
        } else {
            for (int p = 0; p < P; p++) {
                const int b = p * 32 + lane;
                if (b < left_b) put(to + a * TO_A + b, Pack<T, 1>{{tile[b * ROW + a]}}, adds);
            }
        }
    }
}

}  // namespace copying
