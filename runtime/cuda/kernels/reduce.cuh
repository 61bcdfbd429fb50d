// Reductions over any dims of any layout. `Kept` has the operand's layout along the dims that stay, `Gone` along those that
// go, both counted in packs of `N` neighbours where these are neighbours of that kind; `To` has the result's, element for
// element of `Kept`.
//
// Where results are few, blocks share the work on each: block `y` combines a slice of `Gone`, the results of the slices
// stand one after the other, and another reduction combines them.

namespace reduce {

// A combined number becomes a result; `adds` it to what is there.
template <class T, class C> DEVICE void put(T* to, C x, C factor, i64 adds) {
    x = (C)(x * factor);
    *to = narrow<T>(adds ? (C)(widen(*to) + x) : x);
}

// Where a pack stands; in 32 bits, where they can count all, division is cheap.
template <class Layout> DEVICE i64 place(i64 index) {
    return Layout::size < 1ll << 31 ? Layout::at((u32)index) : Layout::at(index);
}

// The part of `Gone` that the block combines. It has at least one pack, if `Gone` has.
template <class Gone, int SLICES> struct Slice {
    static constexpr i64 MOST = (Gone::size + SLICES - 1) / SLICES;
    DEVICE i64 number() { return SLICES == 1 ? 0 : blockIdx.y; }
    DEVICE i64 first() { return number() * MOST; }
    DEVICE i64 end() { return first() + MOST < Gone::size ? first() + MOST : Gone::size; }
};

// The packs `own, own + step, …` of a slice of `Gone`, combined, each element with those of its place in the pack.
template <class Combine, class Gone, int N, int SLICES, class C, class T>
DEVICE void run(const T* start, i64 own, i64 step, C (&total)[N]) {
    typedef Slice<Gone, SLICES> Own;
    static_assert(Gone::template apart<aligned_to<T, N>>, "the packs that go are not aligned");
    const i64 first = Own::first(), end = Own::end();
    Pack<T, N> some = {};
    if (Gone::size > 0 && Combine::NEEDS_SOME) some = load<N>(start + place<Gone>(first));
    for (int e = 0; e < N; e++) total[e] = Combine::nothing((C)widen(some.at[e]));
    for (i64 i = first + own; i < end;) {
        C part[N];
        for (int e = 0; e < N; e++) part[e] = Combine::nothing((C)widen(some.at[e]));
        const i64 left = (end - i + step - 1) / step;
        const int count = left < rows::RUN ? (int)left : rows::RUN;
        #pragma unroll 4
        for (int n = 0; n < count; n++) {
            const Pack<T, N> x = load<N>(start + place<Gone>(i + n * step));
            #pragma unroll
            for (int e = 0; e < N; e++) part[e] = Combine::of(part[e], (C)widen(x.at[e]));
        }
        for (int e = 0; e < N; e++) total[e] = Combine::of(total[e], part[e]);
        i += count * step;
    }
}

// A group of `GROUP` threads an element of the result: neighbours combine neighbours.
template <class Combine, class Kept, class Gone, class To, int N, int GROUP, int SLICES, class C, class T, class U>
DEVICE void along(const T* from, U* to, C factor, i64 adds) {
    static_assert(Kept::template apart<aligned_to<T, N>>, "the packs that stay are not aligned");
    const i64 own = (i64)blockIdx.x * (blockDim.x / GROUP) + threadIdx.x / GROUP;
    const bool is_there = own < Kept::size;
    C total[N];
    // Those of a group without an element have a part in combining, though not in what comes of it.
    const T* const start = from + place<Kept>(is_there ? own : 0);
    run<Combine, Gone, N, SLICES>(start, threadIdx.x % GROUP, GROUP, total);
    C x[1] = {total[0]};
    for (int e = 1; e < N; e++) x[0] = Combine::of(x[0], total[e]);
    rows::over_group<Combine, GROUP>(x);
    if (!is_there || threadIdx.x % GROUP != 0) return;
    put(to + Slice<Gone, SLICES>::number() * Kept::size + place<To>(own), x[0], factor, adds);
}

// A thread `N` neighbours of the result, which others have too: of a block's threads `ACROSS` have neighbours, and `DOWN`
// the same.
template <class Combine, class Kept, class Gone, class To, int N, int ACROSS, int DOWN, int SLICES, class C, class T, class U>
DEVICE void across(const T* from, U* to, C factor, i64 adds) {
    static_assert(Kept::template apart<aligned_to<T, N>>, "the packs that stay are not aligned");
    const i64 first = (i64)blockIdx.x * ACROSS;
    const int column = threadIdx.x % ACROSS, row = threadIdx.x / ACROSS;
    SHARED(C, of_threads, ACROSS * DOWN * N);
    if (first + column < Kept::size) {
        C total[N];
        run<Combine, Gone, N, SLICES>(from + place<Kept>(first + column), row, DOWN, total);
        for (int e = 0; e < N; e++) of_threads[(row * ACROSS + column) * N + e] = total[e];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < ACROSS * N; i += blockDim.x) {
        const i64 own = first * N + i;
        if (own >= Kept::size * N) return;
        C x = of_threads[i];
        for (int other = 1; other < DOWN; other++) x = Combine::of(x, of_threads[other * (ACROSS * N) + i]);
        put(to + Slice<Gone, SLICES>::number() * (Kept::size * N) + place<To>(own), x, factor, adds);
    }
}

}  // namespace reduce
