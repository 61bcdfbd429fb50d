// The gradient of attention of f16 and bf16 by tensor cores, without a mask, after attention_mma.cuh. A warp has 16 keys,
// whose scores it computes transposed, or 16 queries: so weights and their gradients go from registers into the next
// product, and every sum is one warp's, in one order. Tiles of the other side come while those before them are used.

namespace attention {

// What a query's weights and their gradients are computed from.
struct Pair {
    // Of the scores, in units of log 2; ∞ for a row that nothing was kept of, and for one that is not there, so that its
    // weights are zeros.
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
        sums[i % 2] += half(x, i % 8 / 4) * half(y, i % 8 / 4);
    }
    for (float& sum : sums) sum = over_quad<Sum>(sum);
}

// What a warp's queries' weights and their gradients are computed from: a thread's two rows. Other kernels find it in
// `pairs`.
template <class Call>
DEVICE void prepare(Pair (&own)[2], const float (&deltas)[2], const float* logsumexp, Pair* pairs, int head, int query) {
    #pragma unroll
    for (int row = 0; row < 2; row++) {
        const int s = query + (int)threadIdx.x % 32 / 4 + 8 * row;
        const float total = s < (int)Call::queries ? logsumexp[head * Call::queries + s] : -INFINITY;
        own[row] = Pair{total == -INFINITY ? INFINITY : total * LOG2_E, deltas[row]};
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
            scores[i][j] = hidden ? 0.0f : mma::power_of_two(scores[i][j] * unit - two.at[j % 2 * 2]);
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

// d k and d v: `16 * WARPS` keys a block, `QUERIES` queries at a time.
template <class Call, class Q, class K, class V, class DOut, class DK, class DV, int WARPS, int QUERIES, class T>
DEVICE void by_keys_mma(const T* q, const T* k, const T* v, const T* dout, const Pair* pairs, T* dk, T* dv, float scale,
                        int first) {
    typedef mma::Matrix<T, (int)Call::width> M;
    constexpr int THREADS = 32 * WARPS, ROWS = 16 * WARPS, SIZE = QUERIES * M::WIDTH;
    // Registers hold keys and values, or, where these are wide, keys.
    constexpr int KEPT = M::WIDTH > 64 ? ROWS : 0;
    static_assert(ROWS <= 4 * QUERIES, "results go through the same memory");
    SHARED(mma::Room, memory, (4 * QUERIES + KEPT) * M::WIDTH / 128);
    T* const tiles = (T*)memory;
    T* const kept = tiles + 4 * SIZE;
    constexpr int blocks = ((int)Call::keys + ROWS - 1) / ROWS, groups = (int)(Call::heads / Call::group);
    constexpr int all = (int)Call::queries, members = (int)Call::group;
    const int start = (int)blockIdx.x % blocks * ROWS, b = (int)blockIdx.x / blocks / groups;
    const int group = (int)blockIdx.x / blocks % groups, warp = (int)threadIdx.x / 32;
    const int key = start + warp * 16, left = (int)Call::keys - key;
    // The tile that has the first query which sees a key of these.
    const int begin = Call::causal && start > first ? (start - first) / QUERIES * QUERIES : 0;
    const auto fill = [&](T* to, int member, int query) {
        const int h = group * members + member;
        M::template fill<QUERIES, THREADS>(to, Q::of(q, b, h, query), Q::step, all - query);
        M::template fill<QUERIES, THREADS>(to + SIZE, DOut::of(dout, b, h, query), DOut::step, all - query);
    };
    u32 keys[M::WIDTH / 16][4], values[M::WIDTH / 16][4];
    left_sides<M>(keys, K::of(k, b, group, key), K::step, left);
    if (KEPT > 0) M::template fill<ROWS, THREADS>(kept, V::of(v, b, group, start), V::step, (int)Call::keys - start);
    else left_sides<M>(values, V::of(v, b, group, key), V::step, left);
    float k_sums[M::GROUPS][4], v_sums[M::GROUPS][4];
    clear(k_sums);
    clear(v_sums);
    int member = begin < all ? 0 : members, query = begin, next = 0;
    if (member < members) fill(tiles, member, query);
    while (member < members) {
        const T* const own = tiles + next;
        const int own_member = member, own_query = query;
        query += QUERIES;
        if (query >= all) query = begin, member++;
        next ^= 2 * SIZE;
        mma::wait_for_copies();
        __syncthreads();
        if (member < members) fill(tiles + next, member, query);
        // The warp has no keys, or the last query of the tile comes before them.
        if (left <= 0 || Call::causal && first + own_query + QUERIES - 1 < key) continue;
        const int head = (b * groups + group) * members + own_member;
        const Pair* const rows = pairs + (head * (int)pairs_of_head<Call>() + own_query);
        float weights[QUERIES / 8][4];
        rows_by_rows<M>(weights, keys, own);
        weights_of_keys<Call>(weights, rows, scale * LOG2_E, own_query, key, first);
        weigh<M>(v_sums, weights, own + SIZE);
        float d_weights[QUERIES / 8][4];
        if (KEPT > 0) rows_by_rows<M>(d_weights, kept + warp * 16 * M::WIDTH, own + SIZE);
        else rows_by_rows<M>(d_weights, values, own + SIZE);
        score_gradients(weights, d_weights, rows);
        weigh<M>(k_sums, weights, own);
    }
    __syncthreads();
    M::put(tiles + warp * 16 * M::WIDTH, k_sums, scale, scale, DK::of(dk, b, group, key), DK::step, left);
    __syncwarp();
    M::put(tiles + warp * 16 * M::WIDTH, v_sums, 1, 1, DV::of(dv, b, group, key), DV::step, left);
}

// d q, and what `by_keys_mma` needs of each query: `16 * WARPS` queries a block, `KEYS` keys at a time.
template <class Call, class Q, class K, class V, class Out, class DOut, class DQ, int WARPS, int KEYS, class T>
DEVICE void by_queries_mma(const T* q, const T* k, const T* v, const T* out, const T* dout, const float* logsumexp,
                           Pair* pairs, T* dq, float scale, int first) {
    typedef mma::Matrix<T, (int)Call::width> M;
    constexpr int THREADS = 32 * WARPS, ROWS = 16 * WARPS, SIZE = KEYS * M::WIDTH;
    static_assert(ROWS <= 4 * KEYS, "results go through the same memory");
    SHARED(mma::Room, memory, 4 * KEYS * M::WIDTH / 128);
    T* const tiles = (T*)memory;
    constexpr int blocks = ((int)Call::queries + ROWS - 1) / ROWS, all = (int)Call::keys;
    const int head = (int)blockIdx.x / blocks, b = head / (int)Call::heads, h = head % (int)Call::heads;
    // Those that see most come first.
    const int start = (blocks - 1 - (int)blockIdx.x % blocks) * ROWS, warp = (int)threadIdx.x / 32;
    const int group = h / (int)Call::group, query = start + warp * 16, left = (int)Call::queries - query;
    const int end = keys_seen<Call>(start + ROWS, first);
    const auto fill = [&](int key) {
        T* const to = tiles + key / KEYS % 2 * (2 * SIZE);
        M::template fill<KEYS, THREADS>(to, K::of(k, b, group, key), K::step, all - key);
        M::template fill<KEYS, THREADS>(to + SIZE, V::of(v, b, group, key), V::step, all - key);
    };
    u32 queries[M::WIDTH / 16][4], gradients[M::WIDTH / 16][4];
    left_sides<M>(queries, Q::of(q, b, h, query), Q::step, left);
    left_sides<M>(gradients, DOut::of(dout, b, h, query), DOut::step, left);
    Pair own[2];
    float deltas[2];
    {
        u32 outputs[M::WIDTH / 16][4];
        left_sides<M>(outputs, Out::of(out, b, h, query), Out::step, left);
        row_products<M, T>(deltas, gradients, outputs);
    }
    prepare<Call>(own, deltas, logsumexp, pairs, head, query);
    float sums[M::GROUPS][4];
    clear(sums);
    fill(0);
    for (int key = 0; key < end; key += KEYS) {
        const T* const keys = tiles + key / KEYS % 2 * (2 * SIZE);
        mma::wait_for_copies();
        __syncthreads();
        if (key + KEYS < end) fill(key + KEYS);
        if (left <= 0 || !sees_any<Call>(query, key, first)) continue;
        float weights[KEYS / 8][4], d_weights[KEYS / 8][4];
        rows_by_rows<M>(weights, queries, keys);
        if (!sees_all<Call>(query, key, KEYS, first)) hide<Call>(weights, query, key, first);
        rows_by_rows<M>(d_weights, gradients, keys + SIZE);
        #pragma unroll
        for (int i = 0; i < KEYS / 2; i++) {
            const Pair& row = own[i % 4 / 2];
            float& x = weights[i / 4][i % 4];
            x = mma::power_of_two(x * (scale * LOG2_E) - row.logsumexp) * (d_weights[i / 4][i % 4] - row.delta);
        }
        weigh<M>(sums, weights, keys);
    }
    __syncthreads();
    M::put(tiles + warp * 16 * M::WIDTH, sums, scale, scale, DQ::of(dq, b, h, query), DQ::step, left);
}

}  // namespace attention
