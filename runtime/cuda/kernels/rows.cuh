// Rows, each worked on by a group of threads: what norms, softmaxes and reductions build on. A kernel is written for a
// shape, which says how a row's elements go to the threads; there is one for rows whose elements are neighbours in memory,
// one for those that stand next to each other.

namespace rows {

// Terms that are added up one after the other, at most: sums of these are added up again, so that little is lost.
constexpr int RUN = 64;

template <class T, int N> DEVICE Pack<Computed<T>, N> widen_all(const Pack<T, N>& pack) {
    Pack<Computed<T>, N> wide;
    #pragma unroll
    for (int e = 0; e < N; e++) wide.at[e] = widen(pack.at[e]);
    return wide;
}

// Each of the `M` numbers that the `GROUP` neighbours of a group have, combined; all of them get it. `GROUP` is a power of
// two. All threads of the block must come here.
template <class Combine, int GROUP, int M, class C> DEVICE void over_group(C (&x)[M]) {
    constexpr int LANES = GROUP < 32 ? GROUP : 32, WARPS = GROUP / LANES;
    #pragma unroll
    for (int offset = LANES / 2; offset > 0; offset /= 2)
        for (int m = 0; m < M; m++) x[m] = Combine::of(x[m], __shfl_xor_sync(0xffffffffu, x[m], offset));
    if (WARPS == 1) return;
    SHARED(C, of_warps, 32 * M);
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    // What an earlier call left there has been read.
    __syncthreads();
    if (lane == 0)
        for (int m = 0; m < M; m++) of_warps[warp * M + m] = x[m];
    __syncthreads();
    const u32 other = warp / WARPS * WARPS + lane % WARPS;
    for (int m = 0; m < M; m++) x[m] = of_warps[other * M + m];
    #pragma unroll
    for (int offset = WARPS / 2; offset > 0; offset /= 2)
        for (int m = 0; m < M; m++) x[m] = Combine::of(x[m], __shfl_xor_sync(0xffffffffu, x[m], offset));
}

// Rows of `SIZE` neighbours, one after the other, a group of `GROUP` threads for each: a thread has every `GROUP`th pack of
// `N_`. A row that is `HELD_` stays in registers; of others a block has one, and reads it whenever it is asked for.
template <i64 ROWS_, i64 SIZE_, int N_, int GROUP, int GROUPS_, bool HELD_> struct Along {
    static constexpr i64 ROWS = ROWS_, SIZE = SIZE_, PACKS = SIZE / N_;
    static constexpr int N = N_, GROUPS = GROUPS_;
    static constexpr bool HELD = HELD_;
    static_assert(SIZE % N == 0, "the packs of a row are not aligned");
    static_assert(HELD || GROUPS == 1, "a row that is not held has a block of its own, so no block is partial");
    // Packs of a thread.
    static constexpr int OWN = (int)((PACKS + GROUP - 1) / GROUP);

    // The row of the thread's group, if the block does this one of the `GROUPS` rows that a block does at once. Rows from
    // `ROWS` on are not there.
    DEVICE i64 row(i64 block) { return block * GROUPS + threadIdx.x / GROUP; }
    DEVICE i64 start(i64 row) { return row * SIZE; }
    // Whether the thread is the first of its group.
    DEVICE bool is_first() { return threadIdx.x % GROUP == 0; }

    // Calls for each of the thread's packs with its number and its place in the row.
    template <class Do> DEVICE void each(Do what) {
        const int lane = threadIdx.x % GROUP;
        #pragma unroll (HELD ? OWN : 4)
        for (int i = 0; i < OWN; i++) {
            const int pack = i * GROUP + lane;
            if (PACKS % GROUP == 0 || pack < PACKS) what(i, (i64)pack * N);
        }
    }

    template <class Combine, int M, class C> DEVICE void over(C (&x)[M]) { over_group<Combine, GROUP>(x); }
};

// Rows of `SIZE` elements that are `INNER` apart, so that neighbours in memory are of neighbouring rows. A block has
// `ACROSS` rows, each worked on by `DOWN` threads.
template <i64 OUTER, i64 SIZE_, i64 INNER, int ACROSS, int DOWN, bool HELD_> struct Across {
    static constexpr i64 ROWS = OUTER * INNER, SIZE = SIZE_;
    static constexpr int N = 1;
    static constexpr bool HELD = HELD_;
    static constexpr int OWN = (int)((SIZE + DOWN - 1) / DOWN);

    DEVICE i64 row(i64 block) { return block * ACROSS + threadIdx.x % ACROSS; }
    // The threads of a partial last block whose row is not there read the last row: a row that is not held is read
    // before anything asks whether it is there.
    DEVICE i64 start(i64 row) {
        const i64 own = row < ROWS ? row : ROWS - 1;
        return own / INNER * (SIZE * INNER) + own % INNER;
    }

    template <class Do> DEVICE void each(Do what) {
        const int first = threadIdx.x / ACROSS;
        #pragma unroll (HELD ? OWN : 4)
        for (int i = 0; i < OWN; i++) {
            const int own = i * DOWN + first;
            if (SIZE % DOWN == 0 || own < SIZE) what(i, (i64)own * INNER);
        }
    }

    template <class Combine, int M, class C> DEVICE void over(C (&x)[M]) {
        if (DOWN == 1) return;
        SHARED(C, of_threads, ACROSS * DOWN * M);
        __syncthreads();
        for (int m = 0; m < M; m++) of_threads[m * (ACROSS * DOWN) + threadIdx.x] = x[m];
        __syncthreads();
        for (int m = 0; m < M; m++) {
            const C* const own = of_threads + m * (ACROSS * DOWN) + threadIdx.x % ACROSS;
            x[m] = own[0];
            for (int i = 1; i < DOWN; i++) x[m] = Combine::of(x[m], own[i * ACROSS]);
        }
    }
};

// A thread's part of a row.
template <class Shape, class T> struct Row {
    const T* from;
    Pack<Computed<T>, Shape::N> held[Shape::HELD ? Shape::OWN : 1];
};

// A row that begins at `from`; zeros if it is not there.
template <class Shape, class T> DEVICE Row<Shape, T> read(const T* from, bool is_there) {
    Row<Shape, T> row;
    row.from = from;
    if (Shape::HELD)
        Shape::each([&](int i, i64 place) {
            Pack<T, Shape::N> pack = {};
            if (is_there) pack = load<Shape::N>(from + place);
            row.held[i] = widen_all(pack);
        });
    return row;
}

// The pack that `Shape::each` speaks of.
template <class Shape, class T>
DEVICE Pack<Computed<T>, Shape::N> pack(const Row<Shape, T>& row, int i, i64 place) {
    if (Shape::HELD) return row.held[i];
    return widen_all(load<Shape::N>(row.from + place));
}

// Writes a pack of results.
template <class T, int N, class C> DEVICE void write(T* to, const Pack<C, N>& results) {
    Pack<T, N> pack;
    #pragma unroll
    for (int e = 0; e < N; e++) pack.at[e] = narrow<T>(results.at[e]);
    store(to, pack);
}

// Sums over a row, `M` at once: `add(i, place, sums)` adds the terms of a pack.
template <class Shape, int M, class C, class Add> DEVICE void sum(C (&totals)[M], Add add) {
    C part[M] = {};
    for (int m = 0; m < M; m++) totals[m] = (C)0;
    Shape::each([&](int i, i64 place) {
        add(i, place, part);
        if ((i + 1) % (RUN / Shape::N) != 0) return;
        for (int m = 0; m < M; m++) totals[m] += part[m], part[m] = (C)0;
    });
    for (int m = 0; m < M; m++) totals[m] += part[m];
    Shape::template over<Sum>(totals);
}

}  // namespace rows

