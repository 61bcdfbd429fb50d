// Contractions of any layout and type, for what cuBLASLt does not take: integers, strides of which none is 1, few terms.

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
            sum += (C)widen(x[LhsTerms::at(i)]) * (C)widen(y[RhsTerms::at(i)]);
        total += sum;
    }
    R* const at = to + To::at(own);
    *at = narrow<R>(adds ? (C)(widen(*at) + total) : total);
}
