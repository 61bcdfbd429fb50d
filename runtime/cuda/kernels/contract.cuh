// Contractions of any layout and type, for tensors that cuBLASLt does not take as they lie: small products, whose copies
// would not pay.

// One thread an element of the result. `Lhs` and `Rhs` have the place where an element's terms begin, for each element of
// the result; `LhsTerms` and `RhsTerms` the terms.
template <class Lhs, class Rhs, class To, class LhsTerms, class RhsTerms, class C, class T, class R>
DEVICE void contract(const T* lhs, const T* rhs, R* to, i64 adds) {
    const i64 own = thread_index();
    if (own >= To::size) return;
    const T* const x = lhs + Lhs::at(own);
    const T* const y = rhs + Rhs::at(own);
    C total = (C)0;
    // Sums of a few are added up, so that little is lost.
    for (i64 i = 0; i < LhsTerms::size;) {
        C sum = (C)0;
        for (i64 n = 0; n < 64 && i < LhsTerms::size; n++, i++)
            sum = fma((C)widen(x[LhsTerms::at(i)]), (C)widen(y[RhsTerms::at(i)]), sum);
        total += sum;
    }
    R* const at = to + To::at(own);
    *at = narrow<R>(adds ? (C)(widen(*at) + total) : total);
}

// Where every `N` neighbours begin that lie one after the other.
template <int N> struct Line {
    template <class I> DEVICE i64 at(I index) { return (i64)index * N; }
};

// Each block's slice of `Σ x·y`, read `N` neighbours at a time; `Packs` has the places of the first of so many.
template <class Packs, int N, class C, class T> DEVICE void dot(const T* x, const T* y, C* slices, i64 count) {
    const i64 step = (i64)gridDim.x * blockDim.x;
    C total = (C)0;
    for (i64 i = thread_index(); i < count;) {
        C sum = (C)0;
        for (int n = 0; n < 64 / N && i < count; n++, i += step) {
            const i64 at = Packs::at(i);
            const Pack<T, N> left = load<N>(x + at), right = load<N>(y + at);
            #pragma unroll
            for (int e = 0; e < N; e++) sum = fma((C)widen(left.at[e]), (C)widen(right.at[e]), sum);
        }
        total += sum;
    }
    total = sum_over_block(total);
    if (threadIdx.x == 0) slices[blockIdx.x] = total;
}

// The sum of the slices, or that added to what is there. One block.
template <class C, class R> DEVICE void dot_total(const C* slices, i64 count, R* to, i64 adds) {
    C total = (C)0;
    for (int i = threadIdx.x; i < count; i += blockDim.x) total += slices[i];
    total = sum_over_block(total);
    if (threadIdx.x == 0) *to = narrow<R>(adds ? (C)(widen(*to) + total) : total);
}
