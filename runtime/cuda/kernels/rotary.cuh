// Rotary position embeddings.

namespace rotary {

// `N` pairs of a row; the second elements stand `APART` behind the first, or, where `APART` is 0, each behind its own.
template <class T, int N, i64 APART> struct Pairs {
    Pack<T, N> first, second;

    DEVICE Pairs of(const T* from) {
        if (APART != 0) return Pairs{load<N>(from), load<N>(from + APART)};
        const Pack<T, 2 * N> both = load<2 * N>(from);
        Pairs pairs;
        #pragma unroll
        for (int i = 0; i < N; i++) pairs.first.at[i] = both.at[2 * i], pairs.second.at[i] = both.at[2 * i + 1];
        return pairs;
    }

    DEVICE void put(T* to, const Pairs& pairs) {
        if (APART != 0) {
            store(to, pairs.first);
            store(to + APART, pairs.second);
            return;
        }
        Pack<T, 2 * N> both;
        #pragma unroll
        for (int i = 0; i < N; i++) both.at[2 * i] = pairs.first.at[i], both.at[2 * i + 1] = pairs.second.at[i];
        store(to, both);
    }
};

// `N` neighbours of a table, or, where it has one for a whole row, that `N` times.
template <int STEP, int N, class T> DEVICE Pack<T, N> of_table(const T* from) {
    if (STEP == 1) return load<N>(from);
    Pack<T, N> pack;
    #pragma unroll
    for (int i = 0; i < N; i++) pack.at[i] = from[0];
    return pack;
}

// A thread rotates `N` pairs, as `Pairs` has them. The layouts say where the first of each `N` pairs stands, and its factors; `STEP` of a
// table is the distance between those of neighbours, 1 or 0.
template <i64 APART, int N, class X, class To, class Cos, int COS_STEP, class Sin, int SIN_STEP, class I, class T, class U>
DEVICE void run(const T* x, const U* cos, const U* sin, T* out) {
    typedef Computed<T> C;
    constexpr int OF_ROW = aligned_to<T, N>, OF_TABLE = aligned_to<U, N>;
    static_assert(X::template apart<OF_ROW> && To::template apart<OF_ROW>, "a pack of a row is not aligned");
    static_assert(APART % OF_ROW == 0, "a pack of a row's second elements is not aligned");
    static_assert(COS_STEP != 1 || Cos::template apart<OF_TABLE>, "a pack of the cosines is not aligned");
    static_assert(SIN_STEP != 1 || Sin::template apart<OF_TABLE>, "a pack of the sines is not aligned");
    const I own = (I)thread_index();
    if (own >= (I)To::size) return;
    Pairs<T, N, APART> pairs = Pairs<T, N, APART>::of(x + X::at(own));
    const Pack<U, N> across = of_table<COS_STEP, N>(cos + Cos::at(own));
    const Pack<U, N> along = of_table<SIN_STEP, N>(sin + Sin::at(own));
    #pragma unroll
    for (int i = 0; i < N; i++) {
        const C a = widen(pairs.first.at[i]), b = widen(pairs.second.at[i]);
        const C c = (C)widen(across.at[i]), s = (C)widen(along.at[i]);
        pairs.first.at[i] = narrow<T>(a * c - b * s);
        pairs.second.at[i] = narrow<T>(b * c + a * s);
    }
    Pairs<T, N, APART>::put(out + To::at(own), pairs);
}

}  // namespace rotary
