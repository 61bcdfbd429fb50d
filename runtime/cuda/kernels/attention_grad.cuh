// The gradient of attention for every type, width and mask, after attention.cuh: each weight is computed again from its
// score and the row's logsumexp, once by a block that has its key and once by a block that has its query. So every sum
// is one block's, in one order.

namespace attention {

// What a query's weights and their gradients are computed from.
template <class C> struct Row {
    // Of the scores; ∞ for a row that nothing was kept of, so that its weights are zeros.
    C logsumexp;
    // Σ out · d out.
    C delta;
    // Of the weights: beside a mask of a huge finite number a logsumexp has no digits left for the number of keys.
    C factor;
};

// A warp a row.
template <class Call, class Out, class DOut, class C, class T>
DEVICE void prepare(const T* out, const T* dout, const C* logsumexp, Row<C>* rows, i64 count) {
    const i64 row = thread_index() / 32, lane = threadIdx.x % 32;
    if (row >= count) return;
    const i64 s = row % Call::queries, head = row / Call::queries, b = head / Call::heads, h = head % Call::heads;
    const T* const x = Out::of(out, b, h, s);
    const T* const y = DOut::of(dout, b, h, s);
    C delta = 0;
    for (i64 i = lane; i < Call::value_width; i += 32) delta = fma((C)widen(x[i]), (C)widen(y[i]), delta);
    delta = over_warp<Sum>(delta);
    const C total = logsumexp[row];
    if (lane == 0) rows[row] = Row<C>{total == (C)-INFINITY ? (C)INFINITY : total, delta, 1};
}

// The row of a query, or one whose weights are zeros.
template <class Call, class C> DEVICE Row<C> row_of(const Row<C>* rows, int batch, int head, int query) {
    if (query >= Call::queries) return Row<C>{(C)INFINITY, 0, 0};
    return rows[(i64)(batch * Call::heads + head) * Call::queries + query];
}

// Weights in place of their scores. Where nothing is added to scores their logsumexp says all of their sum.
template <class M, class C> DEVICE void weights_of(C (&scores)[4][4], const Row<C> (&rows)[4]) {
    constexpr bool added = sizeof(M) > 1;
    #pragma unroll
    for (int i = 0; i < 16; i++) {
        const C weight = exp(scores[i / 4][i % 4] - rows[i / 4].logsumexp);
        scores[i / 4][i % 4] = added ? weight * rows[i / 4].factor : weight;
    }
}

// What the queries' weights must be multiplied by to add up to 1. A tile of queries a block.
template <class Call, class Q, class K, class Mask, class Tile, class C, class T, class M>
DEVICE void normalize(const T* q, const T* k, const M* mask, Row<C>* rows, C scale, int first) {
    SHARED(typename Tile::Four, panels_memory, 2 * Tile::SIZE * DEPTH / 4);
    C* const panels = (C*)panels_memory;
    const Work work = Work::of<Call, Tile>(Call::heads, Call::queries, Call::causal);
    const int b = work.batch, h = work.head, group = h / Call::group, query = work.start;
    Row<C> own[4];
    C totals[4] = {0, 0, 0, 0};
    #pragma unroll
    for (int i = 0; i < 4; i++) own[i] = row_of<Call>(rows, b, h, query + Tile::row() + i);
    const int end = keys_seen<Call, Tile>(query, first);
    for (int key = 0; key < end; key += Tile::SIZE) {
        C scores[4][4];
        Tile::template rows_by_rows<Call::width>(scores, panels, Q::of(q, b, h, query), Q::step, Call::queries - query,
                                                 K::of(k, b, group, key), K::step, Call::keys - key);
        masked<Call, Tile, Mask>(scores, scale, mask, b, h, query, key, first);
        weights_of<M>(scores, own);
        #pragma unroll
        for (int i = 0; i < 4; i++) totals[i] += scores[i][0] + scores[i][1] + (scores[i][2] + scores[i][3]);
    }
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        const C total = Tile::template over_row<Sum>(totals[i]);
        const int s = query + Tile::row() + i;
        if (s < Call::queries && Tile::column() == 0)
            rows[(i64)(b * Call::heads + h) * Call::queries + s].factor = total == 0 ? (C)0 : 1 / total;
    }
}

// The gradients of a tile's scores, from the weights and the weights' gradients.
template <class C>
DEVICE void score_gradients(C (&gradients)[4][4], const C (&weights)[4][4], const Row<C> (&rows)[4], C scale) {
    #pragma unroll
    for (int i = 0; i < 16; i++) {
        C& x = gradients[i / 4][i % 4];
        x = scale * weights[i / 4][i % 4] * (x - rows[i / 4].delta);
    }
}

// d k and d v: a tile of keys a block; along y the columns of the results, `N` tiles a block.
template <class Call, class Q, class K, class V, class DOut, class DK, class DV, class Mask, class Tile, int N, class C,
          class T, class M>
DEVICE void by_keys(const T* q, const T* k, const T* v, const M* mask, const T* dout, const Row<C>* rows, T* dk, T* dv,
                    C scale, int first) {
    SHARED(typename Tile::Four, weights_memory, Tile::SIZE * Tile::SIZE / 4);
    SHARED(typename Tile::Four, panels_memory, 2 * Tile::SIZE * DEPTH / 4);
    C* const panel = (C*)weights_memory;
    C* const panels = (C*)panels_memory;
    const Work work = Work::of<Call, Tile>(Call::heads / Call::group, Call::keys, false);
    const int b = work.batch, group = work.head, key = work.start, left = (int)blockIdx.y * (N * Tile::SIZE);
    const int q_columns = Call::width - left, v_columns = Call::value_width - left;
    const C ones[4] = {1, 1, 1, 1};
    C k_sums[4][4 * N], v_sums[4][4 * N];
    #pragma unroll
    for (int i = 0; i < 16 * N; i++) k_sums[i / (4 * N)][i % (4 * N)] = v_sums[i / (4 * N)][i % (4 * N)] = 0;
    // The tile that has the first query which sees a key of these.
    const int begin = Call::causal && key > first ? (key - first) / Tile::SIZE * Tile::SIZE : 0;
    for (int h = group * Call::group; h < (group + 1) * Call::group; h++)
        for (int query = begin; query < Call::queries; query += Tile::SIZE) {
            const int queries = Call::queries - query;
            const T* const queries_at = Q::of(q, b, h, query);
            const T* const gradients_at = DOut::of(dout, b, h, query);
            C weights[4][4], gradients[4][4];
            Tile::template rows_by_rows<Call::width>(weights, panels, queries_at, Q::step, queries,
                                                     K::of(k, b, group, key), K::step, Call::keys - key);
            masked<Call, Tile, Mask>(weights, scale, mask, b, h, query, key, first);
            Row<C> own[4];
            #pragma unroll
            for (int i = 0; i < 4; i++) own[i] = row_of<Call>(rows, b, h, query + Tile::row() + i);
            weights_of<M>(weights, own);
            Tile::rows_as_terms(panel, weights);
            Tile::template rows_by_rows<Call::value_width>(gradients, panels, gradients_at, DOut::step, queries,
                                                           V::of(v, b, group, key), V::step, Call::keys - key);
            score_gradients(gradients, weights, own, scale);
            if (v_columns > 0)
                Tile::template weigh<N>(v_sums, ones, panel, panels, gradients_at + left, DOut::step, queries, v_columns);
            __syncthreads();
            Tile::rows_as_terms(panel, gradients);
            if (q_columns > 0)
                Tile::template weigh<N>(k_sums, ones, panel, panels, queries_at + left, Q::step, queries, q_columns);
        }
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        const int t = key + Tile::row() + i;
        if (t >= Call::keys) continue;
        Tile::template put<N>(DK::of(dk, b, group, t) + left, k_sums[i], (C)1, q_columns);
        Tile::template put<N>(DV::of(dv, b, group, t) + left, v_sums[i], (C)1, v_columns);
    }
}

// d q: a tile of queries a block; along y the columns of the result, `N` tiles a block.
template <class Call, class Q, class K, class V, class DOut, class DQ, class Mask, class Tile, int N, class C, class T,
          class M>
DEVICE void by_queries(const T* q, const T* k, const T* v, const M* mask, const T* dout, const Row<C>* rows, T* dq,
                       C scale, int first) {
    SHARED(typename Tile::Four, weights_memory, Tile::SIZE * Tile::SIZE / 4);
    SHARED(typename Tile::Four, panels_memory, 2 * Tile::SIZE * DEPTH / 4);
    C* const panel = (C*)weights_memory;
    C* const panels = (C*)panels_memory;
    const Work work = Work::of<Call, Tile>(Call::heads, Call::queries, Call::causal);
    const int b = work.batch, h = work.head, group = h / Call::group, query = work.start;
    const int left = (int)blockIdx.y * (N * Tile::SIZE), queries = Call::queries - query, columns = Call::width - left;
    const C ones[4] = {1, 1, 1, 1};
    C sums[4][4 * N];
    Row<C> own[4];
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        own[i] = row_of<Call>(rows, b, h, query + Tile::row() + i);
        #pragma unroll
        for (int j = 0; j < 4 * N; j++) sums[i][j] = 0;
    }
    const int end = keys_seen<Call, Tile>(query, first);
    for (int key = 0; key < end; key += Tile::SIZE) {
        const int keys = Call::keys - key;
        const T* const keys_at = K::of(k, b, group, key);
        C weights[4][4], gradients[4][4];
        Tile::template rows_by_rows<Call::width>(weights, panels, Q::of(q, b, h, query), Q::step, queries, keys_at,
                                                 K::step, keys);
        masked<Call, Tile, Mask>(weights, scale, mask, b, h, query, key, first);
        weights_of<M>(weights, own);
        Tile::template rows_by_rows<Call::value_width>(gradients, panels, DOut::of(dout, b, h, query), DOut::step,
                                                       queries, V::of(v, b, group, key), V::step, keys);
        score_gradients(gradients, weights, own, scale);
        Tile::columns_as_terms(panel, gradients);
        Tile::template weigh<N>(sums, ones, panel, panels, keys_at + left, K::step, keys, columns);
    }
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        const int s = query + Tile::row() + i;
        if (s < Call::queries) Tile::template put<N>(DQ::of(dq, b, h, s) + left, sums[i], (C)1, columns);
    }
}

}  // namespace attention
