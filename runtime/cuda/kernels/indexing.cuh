// Reading at indices; and the keys by which updates are sorted that go where others read.
//
// A negative index counts from the end, and one outside reads zeros. A way of indexing says which row of the data
// another row stands for: `Way::of(indices, row, start, all)`, -1 for none. The data has a part of a dim of `all`
// elements, from `start` on.

namespace indexing {

// The element of a part of `size` elements, or -1 if it has another or there is none.
DEVICE i64 element(i64 index, i64 start, i64 all, i64 size) {
    const i64 own = (index < 0 ? index + all : index) - start;
    return own >= 0 && own < size ? own : -1;
}

// `Count` indices along a dim of `Size`, the same for everything outside of it.
template <i64 Size, i64 Count, class I> struct Along {
    template <class L> DEVICE i64 of(const L* indices, I row, i64 start, i64 all) {
        const i64 own = element((i64)indices[row % (I)Count], start, all, Size);
        return own < 0 ? -1 : (i64)(row / (I)Count) * Size + own;
    }
};

// An index an element: `Count` along a dim of `Size`, with `Inner` elements inside of it.
template <i64 Size, i64 Count, i64 Inner, class I> struct Elements {
    template <class L> DEVICE i64 of(const L* indices, I row, i64 start, i64 all) {
        const i64 own = element((i64)indices[row], start, all, Size);
        return own < 0 ? -1 : ((i64)(row / (I)(Count * Inner)) * Size + own) * Inner + (i64)(row % (I)Inner);
    }
};

// Coordinates in dims of `Sizes` for each of `Positions` rows of a batch.
template <i64 Positions, class Sizes, class I> struct Coordinates;
template <i64 Positions, class I, i64... Sizes> struct Coordinates<Positions, List<Sizes...>, I> {
    template <class L> DEVICE i64 of(const L* indices, I row, i64, i64) {
        const L* next = indices + (i64)row * (i64)sizeof...(Sizes);
        i64 place = (i64)(row / (I)Positions);
        bool inside = true;
        (step(place, inside, (i64)*next++, Sizes), ...);
        return inside ? place : -1;
    }
    DEVICE void step(i64& place, bool& inside, i64 index, i64 size) {
        const i64 own = element(index, 0, size, size);
        inside = inside && own >= 0;
        place = place * size + own;
    }
};

// A thread reads one of the `Packs` packs of a row.
template <class Way, i64 Rows, i64 Packs, int N, class I, class T, class L>
DEVICE void gather(const T* data, const L* indices, T* out, i64 start, i64 all) {
    const I own = (I)thread_index();
    if (own >= (I)(Rows * Packs)) return;
    const i64 row = Way::of(indices, (I)(own / (I)Packs), start, all);
    Pack<T, N> pack;
#pragma unroll
    for (int e = 0; e < N; e++) pack.at[e] = 0;
    if (row >= 0) pack = load<N>(data + (row * Packs + (i64)(own % (I)Packs)) * N);
    store(out + (i64)own * N, pack);
}

// A thread a row of updates: the row that it goes to, `Places` for none, before its own number, of `Bits` bits.
template <class Way, i64 Rows, i64 Places, int Bits, class I, class L>
DEVICE void keys(const L* indices, u64* keys, i64 start, i64 all) {
    const I own = (I)thread_index();
    if (own >= (I)Rows) return;
    const i64 place = Way::of(indices, own, start, all);
    keys[own] = (u64)(place < 0 ? Places : place) << Bits | own;
}

}  // namespace indexing
