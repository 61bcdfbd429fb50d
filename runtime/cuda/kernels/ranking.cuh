// Places of elements in their order along a dim. No scratch and no table of what is taken: each round finds the first of
// the elements that come after the last one found. A round reads the row once, so few elements of a row are fast to find.

namespace ranking {

// Whether x comes before y. NaN is larger than every number.
template <bool LARGEST, class C> DEVICE bool precedes(C x, C y) {
    if (LARGEST) return x > y || (x != x && y == y);
    return x < y || (x == x && y != y);
}

// Whether x at place i comes before y at place j: equal elements keep the order of their places.
template <bool LARGEST, class C> DEVICE bool is_before(C x, i64 i, C y, i64 j) {
    return precedes<LARGEST>(x, y) || (!precedes<LARGEST>(y, x) && i < j);
}

// A row of `SIZE` elements that are `INNER` apart, for each `GROUP` neighbouring lanes.
template <i64 OUTER, i64 SIZE, i64 INNER, i64 COUNT, int GROUP, bool LARGEST, class T>
DEVICE void top_k(const T* x, i64* places) {
    constexpr i64 ROWS = OUTER * INNER;
    const i64 row = thread_index() / GROUP;
    const int lane = threadIdx.x % GROUP;
    // Lanes whose row is not there take part in the exchange within their warp.
    const i64 own = row < ROWS ? row : ROWS - 1;
    const T* const from = x + own / INNER * (SIZE * INNER) + own % INNER;
    i64 last = -1;
    for (i64 k = 0; k < COUNT; k++) {
        const auto taken = widen(from[(last < 0 ? 0 : last) * INNER]);
        i64 best = SIZE;
        auto first = taken;
        for (i64 i = lane; i < SIZE; i += GROUP) {
            const auto element = widen(from[i * INNER]);
            if (last >= 0 && !is_before<LARGEST>(taken, last, element, i)) continue;
            if (best < SIZE && !precedes<LARGEST>(element, first)) continue;
            best = i;
            first = element;
        }
        #pragma unroll
        for (int offset = GROUP / 2; offset > 0; offset /= 2) {
            const i64 other = __shfl_xor_sync(0xffffffffu, best, offset);
            if (other >= SIZE) continue;
            const auto element = widen(from[other * INNER]);
            if (best < SIZE && !is_before<LARGEST>(element, other, first, best)) continue;
            best = other;
            first = element;
        }
        if (lane == 0 && row < ROWS) places[(own / INNER * COUNT + k) * INNER + own % INNER] = best;
        last = best;
    }
}

}  // namespace ranking
