// The gradient of attention of f16 and bf16 by tensor cores, after attention_mma.cuh. A warp has 16 keys,
// whose scores it computes transposed, or 16 queries: so weights and their gradients go from registers into the next
// product, and every sum is one warp's, in one order. Tiles of the other side come while those before them are used.

namespace attention {

// Two numbers of a query, for its weights and their gradients.
struct Pair {
    // The scores' logsumexp, in units of log 2 if no mask is added. ∞ for a query that sees no key, and for a query
    // that is not there: their weights are zeros.
    float logsumexp;
    // Σ out · d out.
    float delta;
};

// Queries of which each head has whole multiples in scratch.
constexpr i64 PAIRS = 64;
template <class Call> DEVICE constexpr i64 pairs_of_head() { return (Call::queries + PAIRS - 1) / PAIRS * PAIRS; }

// The sums over the products of two left sides' rows: of a thread's first row and of its second.
template <class M, class T>
DEVICE void row_products(float (&sums)[2], const u32 (&left)[M::WIDTH / 16][4], const u32 (&other)[M::WIDTH / 16][4]) {
    const auto half = [](u32 pair, int which) { return widen(T{(u16)(pair >> 16 * which)}); };
    sums[0] = sums[1] = 0;
    #pragma unroll
    for (int i = 0; i < M::WIDTH / 16 * 8; i++) {
        const u32 x = left[i / 8][i % 4], y = other[i / 8][i % 4];
        sums[i % 2] = fma(half(x, i % 8 / 4), half(y, i % 8 / 4), sums[i % 2]);
    }
    for (float& sum : sums) sum = over_quad<Sum>(sum);
}

// The pairs of a thread's two queries. `by_keys_mma` reads them from `pairs`.
template <class Call, bool ADDED>
DEVICE void prepare(Pair (&own)[2], const float (&deltas)[2], const float* logsumexp, Pair* pairs, int head, int query) {
    #pragma unroll
    for (int row = 0; row < 2; row++) {
        const int s = query + (int)threadIdx.x % 32 / 4 + 8 * row;
        const float total = s < (int)Call::queries ? logsumexp[head * Call::queries + s] : -INFINITY;
        own[row] = Pair{total == -INFINITY ? INFINITY : ADDED ? total : total * LOG2_E, deltas[row]};
        if (threadIdx.x % 4 == 0 && s < (int)pairs_of_head<Call>()) pairs[head * pairs_of_head<Call>() + s] = own[row];
    }
}

// Weights in place of the scores of 16 keys against `N` eights of queries.
template <class Call, int N>
DEVICE void weights_of_keys(float (&scores)[N][4], const Pair* pairs, float unit, int query, int key, int first) {
    const int column = 2 * ((int)threadIdx.x % 4);
    // How far the thread's first key comes after its first query.
    const int ahead = key + (int)threadIdx.x % 32 / 4 - (first + query + column);
    #pragma unroll
    for (int i = 0; i < N; i++) {
        const Pack<float, 4> two = load<4>((const float*)(pairs + 8 * i + column));
        #pragma unroll
        for (int j = 0; j < 4; j++) {
            const bool hidden = Call::causal && ahead + j / 2 * 8 > 8 * i + j % 2;
            scores[i][j] = hidden ? 0.0f : mma::power_of_two(fma(scores[i][j], unit, -two.at[j % 2 * 2]));
        }
    }
}

// Makes factors of the totals of a warp's queries: with them the weights of a query add up to 1. `by_keys_mma` reads
// them from `factors`. They are needed where a mask adds a huge number: beside it a logsumexp has no digits left for
// the number of keys, and each weight is 1.
template <class Call> DEVICE void normalize(float (&totals)[2], float* factors, int head, int query) {
    #pragma unroll
    for (int row = 0; row < 2; row++) {
        const float total = over_quad<Sum>(totals[row]);
        const int s = query + (int)threadIdx.x % 32 / 4 + 8 * row;
        totals[row] = total == 0 ? 0.0f : 1 / total;
        if (threadIdx.x % 4 == 0 && s < (int)pairs_of_head<Call>())
            factors[head * pairs_of_head<Call>() + s] = totals[row];
    }
}

// Weights in place of the products of 16 keys and `N` eights of queries under a mask.
template <class Call, class Mask, int N, class M>
DEVICE void masked_weights_of_keys(float (&weights)[N][4], const M* mask, const Pair* pairs, const float* factors,
                                   float scale, int batch, int head, int query, int key, int first) {
    constexpr bool ADDED = Added<Mask, M>::IS;
    const float unit = ADDED ? LOG2_E : scale * LOG2_E;
    const int column = 2 * ((int)threadIdx.x % 4), s = query + column, end = (int)Call::queries - s;
    #pragma unroll
    for (int row = 0; row < 2; row++) {
        const int t = key + (int)threadIdx.x % 32 / 4 + 8 * row;
        const M* const from = mask + Mask::at(batch, head, s, t);
        // The queries from this one on see the key, counted from the thread's first.
        const int begin = t >= (int)Call::keys ? end : Call::causal ? t - first - s : 0;
        #pragma unroll
        for (int i = 0; i < N; i++)
            #pragma unroll
            for (int j = 0; j < 2; j++) {
                const int at = 8 * i + j;
                const bool sees = at >= begin && at < end;
                float& x = weights[i][2 * row + j];
                x = sees ? with_mask(x, scale, from[Mask::at(0, 0, at, 0)]) : -INFINITY;
                x = power_of<ADDED>(x, pairs[column + at].logsumexp, unit);
                if (ADDED) x *= factors[column + at];
            }
    }
}

// The gradients of the scores, but for their factor, in place of weights of 16 keys, from the weights' gradients.
template <int N> DEVICE void score_gradients(float (&weights)[N][4], const float (&gradients)[N][4], const Pair* pairs) {
    #pragma unroll
    for (int i = 0; i < N; i++) {
        const Pair* const two = pairs + 8 * i + 2 * (threadIdx.x % 4);
        const float deltas[2] = {two[0].delta, two[1].delta};
        #pragma unroll
        for (int j = 0; j < 4; j++) weights[i][j] *= gradients[i][j] - deltas[j % 2];
    }
}

// d k and d v: `16 * WARPS` keys a block, `QUERIES` queries at a time, of which a warp has `PART` in its registers at
// once.
template <class Call, class Q, class K, class V, class DOut, class DK, class DV, class Mask, int WARPS, int QUERIES,
          int PART, class T, class M>
DEVICE void by_keys_mma(const T* q, const T* k, const T* v, const M* mask, const T* dout, const Pair* pairs,
                        const float* factors, T* dk, T* dv, float scale, int first) {
    typedef mma::Matrix<T, (int)Call::width> QK;
    typedef mma::Matrix<T, (int)Call::value_width> VO;
    constexpr int THREADS = 32 * WARPS, ROWS = 16 * WARPS, STAGE = QUERIES * (QK::STRIDE + VO::STRIDE);
    // Registers hold keys and values. If these are wide, shared memory holds the values, and under a mask the keys too:
    // registers would spill.
    constexpr bool VALUES_KEPT = QK::WIDTH + VO::WIDTH > 128, KEYS_KEPT = VALUES_KEPT && Mask::IS_ONE;
    constexpr int KEPT = ROWS * ((VALUES_KEPT ? VO::STRIDE : 0) + (KEYS_KEPT ? QK::STRIDE : 0));
    constexpr int RESULT = 16 * (QK::STRIDE > VO::STRIDE ? QK::STRIDE : VO::STRIDE);
    // Results go through the same memory.
    constexpr int ALL = WARPS * RESULT > 2 * STAGE + KEPT ? WARPS * RESULT : 2 * STAGE + KEPT;
    SHARED(mma::Room, memory, (ALL + 127) / 128);
    T* const tiles = (T*)memory;
    T* const kept_values = tiles + 2 * STAGE;
    T* const kept_keys = kept_values + ROWS * VO::STRIDE;
    constexpr int blocks = ((int)Call::keys + ROWS - 1) / ROWS, groups = (int)(Call::heads / Call::group);
    constexpr int all = (int)Call::queries, members = (int)Call::group;
    const int start = (int)blockIdx.x % blocks * ROWS, b = (int)blockIdx.x / blocks / groups;
    const int group = (int)blockIdx.x / blocks % groups, warp = (int)threadIdx.x / 32;
    const int key = start + warp * 16, left = (int)Call::keys - key;
    // The tile that has the first query which sees a key of these.
    const int begin = Call::causal && start > first ? (start - first) / QUERIES * QUERIES : 0;
    const auto fill = [&](T* to, int member, int query) {
        const int h = group * members + member;
        QK::template fill<QUERIES, THREADS>(to, Q::of(q, b, h, query), Q::step, all - query);
        VO::template fill<QUERIES, THREADS>(to + QUERIES * QK::STRIDE, DOut::of(dout, b, h, query), DOut::step,
                                            all - query);
    };
    u32 keys[QK::WIDTH / 16][4], values[VO::WIDTH / 16][4];
    if (KEYS_KEPT)
        QK::template fill<ROWS, THREADS>(kept_keys, K::of(k, b, group, start), K::step, (int)Call::keys - start);
    else left_sides<QK>(keys, K::of(k, b, group, key), K::step, left);
    if (VALUES_KEPT)
        VO::template fill<ROWS, THREADS>(kept_values, V::of(v, b, group, start), V::step, (int)Call::keys - start);
    else left_sides<VO>(values, V::of(v, b, group, key), V::step, left);
    float k_sums[QK::GROUPS][4], v_sums[VO::GROUPS][4];
    clear(k_sums);
    clear(v_sums);
    int member = begin < all ? 0 : members, query = begin, stage = 0;
    if (member < members) fill(tiles, member, query);
    while (member < members) {
        const T* const queries = tiles + stage * STAGE;
        const T* const gradients = queries + QUERIES * QK::STRIDE;
        const int own_member = member, own_query = query;
        query += QUERIES;
        if (query >= all) query = begin, member++;
        stage ^= 1;
        mma::wait_for_copies();
        __syncthreads();
        if (member < members) fill(tiles + stage * STAGE, member, query);
        // The warp has no keys, or the last query of the tile comes before them.
        if (left <= 0 || Call::causal && first + own_query + QUERIES - 1 < key) continue;
        const int own_head = group * members + own_member, head = b * (int)Call::heads + own_head;
        #pragma unroll 1
        for (int part = 0; part < QUERIES; part += PART) {
            const T* const q_part = queries + part * QK::STRIDE;
            const T* const d_part = gradients + part * VO::STRIDE;
            const int first_query = own_query + part, at = head * (int)pairs_of_head<Call>() + first_query;
            float weights[PART / 8][4];
            if (KEYS_KEPT) rows_by_rows<QK>(weights, kept_keys + warp * 16 * QK::STRIDE, q_part);
            else rows_by_rows<QK>(weights, keys, q_part);
            if constexpr (Mask::IS_ONE)
                masked_weights_of_keys<Call, Mask>(weights, mask, pairs + at, factors + at, scale, b, own_head,
                                                   first_query, key, first);
            else weights_of_keys<Call>(weights, pairs + at, scale * LOG2_E, first_query, key, first);
            weigh<VO>(v_sums, weights, d_part);
            float d_weights[PART / 8][4];
            if (VALUES_KEPT) rows_by_rows<VO>(d_weights, kept_values + warp * 16 * VO::STRIDE, d_part);
            else rows_by_rows<VO>(d_weights, values, d_part);
            score_gradients(weights, d_weights, pairs + at);
            weigh<QK>(k_sums, weights, q_part);
        }
    }
    // Keys and values may still be under way if no query sees them.
    mma::wait_for_copies();
    __syncthreads();
    QK::put(tiles + warp * RESULT, k_sums, scale, scale, DK::of(dk, b, group, key), DK::step, left);
    __syncwarp();
    VO::put(tiles + warp * RESULT, v_sums, 1, 1, DV::of(dv, b, group, key), DV::step, left);
}

// d q, and the numbers of each query that `by_keys_mma` needs: `16 * WARPS` queries a block, `KEYS` keys at a time.
template <class Call, class Q, class K, class V, class Out, class DOut, class DQ, class Mask, bool PAIRED, int WARPS,
          int KEYS, class T, class M>
DEVICE void by_queries_mma(const T* q, const T* k, const T* v, const M* mask, const T* out, const T* dout,
                           const float* logsumexp, Pair* pairs, float* factors, T* dq, float scale, int first) {
    typedef mma::Matrix<T, (int)Call::width> QK;
    typedef mma::Matrix<T, (int)Call::value_width> VO;
    constexpr int THREADS = 32 * WARPS, ROWS = 16 * WARPS, STAGE = KEYS * (QK::STRIDE + VO::STRIDE);
    constexpr bool ADDED = Added<Mask, M>::IS;
    static_assert(ROWS * QK::STRIDE <= 2 * STAGE, "results go through the same memory");
    SHARED(mma::Room, memory, (2 * STAGE + 127) / 128);
    T* const tiles = (T*)memory;
    constexpr int blocks = ((int)Call::queries + ROWS - 1) / ROWS, all = (int)Call::keys;
    const int head = (int)blockIdx.x / blocks, b = head / (int)Call::heads, h = head % (int)Call::heads;
    // Those that see most come first.
    const int start = (blocks - 1 - (int)blockIdx.x % blocks) * ROWS, warp = (int)threadIdx.x / 32;
    const int group = h / (int)Call::group, query = start + warp * 16, left = (int)Call::queries - query;
    const int end = keys_seen<Call>(start + ROWS, first);
    const auto fill = [&](int key) {
        T* const to = tiles + key / KEYS % 2 * STAGE;
        QK::template fill<KEYS, THREADS>(to, K::of(k, b, group, key), K::step, all - key);
        VO::template fill<KEYS, THREADS>(to + KEYS * QK::STRIDE, V::of(v, b, group, key), V::step, all - key);
    };
    u32 queries[QK::WIDTH / 16][4], gradients[VO::WIDTH / 16][4];
    left_sides<QK>(queries, Q::of(q, b, h, query), Q::step, left);
    left_sides<VO>(gradients, DOut::of(dout, b, h, query), DOut::step, left);
    Pair own[2];
    float deltas[2], totals[2] = {0, 0};
    {
        u32 outputs[VO::WIDTH / 16][4];
        left_sides<VO>(outputs, Out::of(out, b, h, query), Out::step, left);
        row_products<VO, T>(deltas, gradients, outputs);
    }
    prepare<Call, ADDED>(own, deltas, logsumexp, pairs, head, query);
    float sums[QK::GROUPS][4];
    clear(sums);
    fill(0);
    for (int key = 0; key < end; key += KEYS) {
        const T* const keys = tiles + key / KEYS % 2 * STAGE;
        mma::wait_for_copies();
        __syncthreads();
        if (key + KEYS < end) fill(key + KEYS);
        if (left <= 0 || !sees_any<Call>(query, key, first)) continue;
        float weights[KEYS / 8][4], d_weights[KEYS / 8][4];
        rows_by_rows<QK>(weights, queries, keys);
        if constexpr (Mask::IS_ONE) mask_products<Call, Mask, PAIRED>(weights, mask, scale, b, h, query, key, first);
        else if (!sees_all<Call>(query, key, KEYS, first)) hide<Call>(weights, query, key, first);
        rows_by_rows<VO>(d_weights, gradients, keys + KEYS * QK::STRIDE);
        #pragma unroll
        for (int i = 0; i < KEYS / 2; i++) {
            const Pair& row = own[i % 4 / 2];
            float& x = weights[i / 4][i % 4];
            x = power_of<ADDED>(x, row.logsumexp, ADDED ? LOG2_E : scale * LOG2_E);
            if (ADDED) totals[i % 4 / 2] += x;
            x *= d_weights[i / 4][i % 4] - row.delta;
        }
        weigh<QK>(sums, weights, keys);
    }
    if (ADDED) normalize<Call>(totals, factors, head, query);
    const float upper = ADDED ? scale * totals[0] : scale, lower = ADDED ? scale * totals[1] : scale;
    __syncthreads();
    QK::put(tiles + warp * 16 * QK::STRIDE, sums, upper, lower, DQ::of(dq, b, h, query), DQ::step, left);
}

}  // namespace attention
