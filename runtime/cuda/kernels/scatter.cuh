// Writing at indices: keys (a place, and the number of the row of updates that goes there) are sorted, so that the
// updates of one place follow each other in their order; then these are combined in runs, and the runs with each other.
// Nothing depends on which thread is first.

namespace scatter {

// Updates that are combined one after the other, at most. Keys are cut at its multiples and where places change: what
// lies between is a run.
constexpr i64 RUN = 64;

// Where key `i` goes when each two neighbours of `length` sorted keys become one. No two keys are equal.
template <class I> DEVICE I merged(const u64* keys, I count, I length, I i) {
    const u64 key = keys[i];
    const I first = i / length * length, both = i / (2 * length) * (2 * length);
    I low = first == both ? first + length : both;
    if (low > count) low = count;
    const I other = low;
    I high = count - low < length ? count : low + length;
    while (low < high) {
        const I middle = low + (high - low) / 2;
        if (keys[middle] < key) low = middle + 1;
        else high = middle;
    }
    return both + (i - first) + (low - other);
}

// A block sorts `Threads * Each` keys.
template <int Threads, int Each, i64 Count> DEVICE void sort(u64* keys) {
    constexpr u32 ROOM = Threads * Each;
    SHARED(u64, sorted, ROOM);
    const i64 start = (i64)blockIdx.x * ROOM;
    const u32 count = Count - start < ROOM ? (u32)(Count - start) : ROOM;
    for (u32 i = threadIdx.x; i < count; i += Threads) sorted[i] = keys[start + i];
    __syncthreads();
    for (u32 length = 1; length < count; length *= 2) {
        u64 own[Each];
        u32 place[Each];
#pragma unroll
        for (int e = 0; e < Each; e++) {
            const u32 i = threadIdx.x + e * Threads;
            if (i < count) own[e] = sorted[i], place[e] = merged(sorted, count, length, i);
        }
        __syncthreads();
#pragma unroll
        for (int e = 0; e < Each; e++)
            if (threadIdx.x + e * Threads < count) sorted[place[e]] = own[e];
        __syncthreads();
    }
    for (u32 i = threadIdx.x; i < count; i += Threads) keys[start + i] = sorted[i];
}

// A thread a key: merges sorted stretches of `length`.
template <i64 Count, class I> DEVICE void merge(const u64* keys, u64* to, i64 length) {
    const I i = (I)thread_index();
    if (i < (I)Count) to[merged(keys, (I)Count, (I)length, i)] = keys[i];
}

// A thread a pack of `Packs`, unless the result is added to.
template <i64 Packs, int N, class T> DEVICE void clear(T* to, i64 adds) {
    const i64 own = thread_index();
    if (adds || own >= Packs) return;
    Pack<T, N> pack;
#pragma unroll
    for (int e = 0; e < N; e++) pack.at[e] = narrow<T>((Computed<T>)0);
    store(to + own * N, pack);
}

struct Product {
    template <class T> DEVICE T of(T x, T y) { return x * y; }
};

// `Count` sorted keys, their numbers in the lowest `Bits` bits. Rows have `Width` elements; the result has `Places` of
// them, `Outer` times over with the same keys. A thread has `N` neighbours of a row.
template <i64 Count, int Bits, i64 Places, i64 Width, i64 Outer, int N, class I> struct Sorted {
    typedef I Index;
    static constexpr int neighbours = N;
    static constexpr i64 count = Count, places = Places, columns = Width / N, runs = (Count + RUN - 1) / RUN;
    static constexpr i64 keys = Count * columns * Outer, ends = runs * columns * Outer;

    // The place of key `i`, -1 where there is no such key.
    DEVICE i64 place(const u64* keys, i64 i) { return i < 0 || i >= Count ? -1 : (i64)(keys[i] >> Bits); }
    // Where an element of a row begins, of the updates and of the result.
    DEVICE i64 update(u64 key, I outer, I column) {
        return ((i64)outer * Count + (i64)(key & ((1ull << Bits) - 1))) * Width + (i64)column * N;
    }
    DEVICE i64 result(i64 place, I outer, I column) {
        return ((i64)outer * Places + place) * Width + (i64)column * N;
    }
    // What a run leaves that is not all of its place: of each `RUN` keys one that begins them, and one behind it.
    DEVICE i64 left(i64 run, bool behind, I outer, I column) {
        return (((i64)outer * runs + run) * 2 + behind) * Width + (i64)column * N;
    }
};

template <class Combine, int N, class C, class T> DEVICE void combine(Pack<C, N>& x, const Pack<T, N>& with) {
#pragma unroll
    for (int e = 0; e < N; e++) x.at[e] = Combine::of(x.at[e], (C)widen(with.at[e]));
}

// Stores the numbers that came to a place, rounded; with `adds`, it combines the rounded numbers with those in memory.
template <class Combine, int N, class C, class T> DEVICE void put(T* to, const Pack<C, N>& x, i64 adds) {
    Pack<T, N> made, there = {};
    if (adds) there = load<N>(to);
#pragma unroll
    for (int e = 0; e < N; e++) {
        made.at[e] = narrow<T>(x.at[e]);
        if (adds) made.at[e] = narrow<T>(Combine::of((C)widen(made.at[e]), (C)widen(there.at[e])));
    }
    store(to, made);
}

// Combines runs: a thread has a pack and a key, and works if a run begins there.
template <class Combine, class S, class C, class T>
DEVICE void fold(const u64* keys, const T* updates, T* to, C* left, i64 adds) {
    constexpr int N = S::neighbours;
    typedef typename S::Index I;
    const I own = (I)thread_index();
    if (own >= (I)S::keys) return;
    const I column = own % (I)S::columns, key = own / (I)S::columns;
    const I outer = key / (I)S::count;
    const i64 first = key % (I)S::count, place = S::place(keys, first);
    if (place == S::places) return;
    const bool begins = S::place(keys, first - 1) != place;
    if (!begins && first % RUN != 0) return;
    i64 end = first + 1;
    while (end % RUN != 0 && S::place(keys, end) == place) end++;
    Pack<C, N> x;
    const Pack<T, N> start = load<N>(updates + S::update(keys[first], outer, column));
#pragma unroll
    for (int e = 0; e < N; e++) x.at[e] = (C)widen(start.at[e]);
#pragma unroll 4
    for (i64 i = first + 1; i < end; i++)
        combine<Combine>(x, load<N>(updates + S::update(keys[i], outer, column)));
    const bool all = begins && S::place(keys, end) != place;
    if (all) put<Combine>(to + S::result(place, outer, column), x, adds);
    else store(left + S::left(first / RUN, first % RUN != 0, outer, column), x);
}

// Combines what runs left: a thread has a pack and `RUN` keys, and works if a place begins there that goes on.
template <class Combine, class S, class C, class T>
DEVICE void join(const u64* keys, const C* left, T* to, i64 adds) {
    constexpr int N = S::neighbours;
    typedef typename S::Index I;
    const I own = (I)thread_index();
    if (own >= (I)S::ends) return;
    const I column = own % (I)S::columns, part = own / (I)S::columns;
    const I outer = part / (I)S::runs;
    const i64 run = part % (I)S::runs, place = S::place(keys, run * RUN + RUN - 1);
    const bool behind = S::place(keys, run * RUN) != place;
    if (place == S::places || place < 0 || S::place(keys, run * RUN + RUN) != place) return;
    if (!behind && S::place(keys, run * RUN - 1) == place) return;
    Pack<C, N> x = load<N>(left + S::left(run, behind, outer, column));
    for (i64 next = run + 1; S::place(keys, next * RUN) == place;) {
        Pack<C, N> sum = load<N>(left + S::left(next++, false, outer, column));
        for (i64 n = 1; n < RUN && S::place(keys, next * RUN) == place; n++)
            combine<Combine>(sum, load<N>(left + S::left(next++, false, outer, column)));
        combine<Combine>(x, sum);
    }
    put<Combine>(to + S::result(place, outer, column), x, adds);
}

// A thread has a pack and a key: the last update of a place takes it.
template <class S, class T> DEVICE void set(const u64* keys, const T* updates, T* to) {
    typedef typename S::Index I;
    const I own = (I)thread_index();
    if (own >= (I)S::keys) return;
    const I column = own % (I)S::columns;
    const i64 i = own / (I)S::columns, place = S::place(keys, i);
    if (place == S::places || S::place(keys, i + 1) == place) return;
    store(to + S::result(place, 0, column), load<S::neighbours>(updates + S::update(keys[i], 0, column)));
}

}  // namespace scatter
