// Attention of f16 and bf16 by tensor cores (Dao, arXiv 2307.08691), without a mask: a warp has 16 queries, whose scores
// and weights never leave its registers, and goes through the keys in tiles that a block shares. After attention.cuh
// and mma.cuh.

namespace attention {

// Exponentials are powers of two, of scores in units of log 2.
constexpr float LOG2_E = 1.4426950408889634f;

// 16 rows of a matrix as left sides.
template <class M, class T>
DEVICE void left_sides(u32 (&to)[M::WIDTH / 16][4], const T* from, i64 step, int rows) {
    #pragma unroll
    for (int i = 0; i < M::WIDTH / 16; i++) M::left_of_rows(to[i], from, step, rows, 16 * i);
}

template <int N> DEVICE void clear(float (&sums)[N][4]) {
    #pragma unroll
    for (int i = 0; i < N * 4; i++) sums[i / 4][i % 4] = 0;
}

// 16 rows against `N` eights of rows of a matrix in shared memory.
template <class M, class T, int N>
DEVICE void rows_by_rows(float (&products)[N][4], const u32 (&left)[M::WIDTH / 16][4], const T* matrix) {
    clear(products);
    #pragma unroll
    for (int term = 0; term < M::WIDTH / 16; term++)
        #pragma unroll
        for (int i = 0; i < N; i += 2) {
            u32 right[4];
            M::rows_as_columns(right, matrix, 8 * i, 16 * term);
            mma::multiply<T>(products[i], left[term], right[0], right[1]);
            mma::multiply<T>(products[i + 1], left[term], right[2], right[3]);
        }
}

// The same, of 16 rows that are in shared memory as well.
template <class M, class T, int N>
DEVICE void rows_by_rows(float (&products)[N][4], const T* rows, const T* matrix) {
    clear(products);
    #pragma unroll
    for (int term = 0; term < M::WIDTH / 16; term++) {
        u32 left[4];
        M::left(left, rows, 0, 16 * term);
        #pragma unroll
        for (int i = 0; i < N; i += 2) {
            u32 right[4];
            M::rows_as_columns(right, matrix, 8 * i, 16 * term);
            mma::multiply<T>(products[i], left, right[0], right[1]);
            mma::multiply<T>(products[i + 1], left, right[2], right[3]);
        }
    }
}

// Adds what 16 rows of weights, of `N` eights of terms, make of rows of a matrix in shared memory.
template <class M, class T, int N>
DEVICE void weigh(float (&sums)[M::GROUPS][4], const float (&weights)[N][4], const T* matrix) {
    #pragma unroll
    for (int term = 0; term < N; term += 2) {
        u32 left[4];
        M::left_of_sums(left, weights[term], weights[term + 1]);
        #pragma unroll
        for (int i = 0; i < M::GROUPS; i += 2) {
            u32 right[4];
            M::rows_as_terms(right, matrix, 8 * term, 8 * i);
            mma::multiply<T>(sums[i], left, right[0], right[1]);
            mma::multiply<T>(sums[i + 1], left, right[2], right[3]);
        }
    }
}

// Scores of keys that are not there, or come after their query, become −∞. A thread has two rows.
template <class Call, int N> DEVICE void hide(float (&scores)[N][4], int query, int key, int first) {
    const int last = Call::causal ? first + query + (int)threadIdx.x % 32 / 4 : (int)Call::keys - 1;
    const int own = key + 2 * ((int)threadIdx.x % 4);
    #pragma unroll
    for (int i = 0; i < N * 4; i++) {
        const int t = own + i / 4 * 8 + i % 2;
        if (t >= Call::keys || t > last + (Call::causal ? i % 4 / 2 * 8 : 0)) scores[i / 4][i % 4] = -INFINITY;
    }
}

// Whether the 16 queries see all of so many keys, and whether they see any.
template <class Call> DEVICE bool sees_all(int query, int key, int keys, int first) {
    return key + keys <= Call::keys && (!Call::causal || key + keys - 1 <= first + query);
}
template <class Call> DEVICE bool sees_any(int query, int key, int first) {
    return !Call::causal || key <= first + query + 15;
}

// The keys that queries up to one see.
template <class Call> DEVICE int keys_seen(int queries, int first) {
    return Call::causal && first + queries < (int)Call::keys ? first + queries : (int)Call::keys;
}

template <class Combine> DEVICE float over_quad(float x) {
    x = Combine::of(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return Combine::of(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

// Weights in place of scores, and the sums so far as they count from then on. A score counts `unit` in powers of two.
template <int N, int WIDTH>
DEVICE void soften(float (&scores)[N][4], float (&largest)[2], float (&totals)[2], float (&sums)[WIDTH][4], float unit) {
    #pragma unroll
    for (int row = 0; row < 2; row++) {
        float next = largest[row];
        // A NaN is passed over here, and found in the total.
        #pragma unroll
        for (int i = 0; i < N; i++) next = fmaxf(next, fmaxf(scores[i][2 * row], scores[i][2 * row + 1]));
        next = fmaxf(next, __shfl_xor_sync(0xffffffffu, next, 1));
        next = fmaxf(next, __shfl_xor_sync(0xffffffffu, next, 2));
        // Nothing was kept so far: any number will do to count from.
        const float base = next == -INFINITY ? 0.0f : next * unit;
        const float factor = mma::power_of_two(largest[row] * unit - base);
        float total = 0;
        #pragma unroll
        for (int i = 0; i < N * 2; i++) {
            float& x = scores[i / 2][2 * row + i % 2];
            total += x = mma::power_of_two(x * unit - base);
        }
        totals[row] = totals[row] * factor + total;
        largest[row] = next;
        #pragma unroll
        for (int i = 0; i < WIDTH; i++) sums[i][2 * row] *= factor, sums[i][2 * row + 1] *= factor;
    }
}

// `16 * WARPS` queries a block, `KEYS` keys at a time. Keys come while values are used, and values while keys are.
template <class Call, class Q, class K, class V, class Out, int WARPS, int KEYS, class T>
DEVICE void forward_mma(const T* q, const T* k, const T* v, T* out, float* logsumexp, float scale, int first) {
    typedef mma::Matrix<T, (int)Call::width> M;
    constexpr int THREADS = 32 * WARPS, ROWS = 16 * WARPS;
    static_assert(ROWS <= 2 * KEYS, "results go through the same memory");
    SHARED(mma::Room, memory, 2 * KEYS * M::WIDTH / 128);
    T* const keys = (T*)memory;
    T* const values = keys + KEYS * M::WIDTH;
    constexpr int tiles = ((int)Call::queries + ROWS - 1) / ROWS, all = (int)Call::keys;
    const int head = (int)blockIdx.x / tiles, b = head / (int)Call::heads, h = head % (int)Call::heads;
    // Those that see most come first.
    const int start = (tiles - 1 - (int)blockIdx.x % tiles) * ROWS, warp = (int)threadIdx.x / 32;
    const int group = h / (int)Call::group, query = start + warp * 16, left = (int)Call::queries - query;
    const int end = keys_seen<Call>(start + ROWS, first);
    const T* const keys_at = K::of(k, b, group, 0);
    const T* const values_at = V::of(v, b, group, 0);
    u32 queries[M::WIDTH / 16][4];
    left_sides<M>(queries, Q::of(q, b, h, query), Q::step, left);
    float sums[M::GROUPS][4], largest[2] = {-INFINITY, -INFINITY}, totals[2] = {0, 0};
    clear(sums);
    M::template fill<KEYS, THREADS>(keys, keys_at, K::step, all);
    mma::wait_for_copies();
    __syncthreads();
    for (int key = 0; key < end; key += KEYS) {
        float scores[KEYS / 8][4];
        const bool sees = left > 0 && sees_any<Call>(query, key, first);
        M::template fill<KEYS, THREADS>(values, values_at + key * V::step, V::step, all - key);
        if (sees) rows_by_rows<M>(scores, queries, keys);
        mma::wait_for_copies();
        __syncthreads();
        if (key + KEYS < end)
            M::template fill<KEYS, THREADS>(keys, keys_at + (key + KEYS) * K::step, K::step, all - key - KEYS);
        if (sees) {
            if (!sees_all<Call>(query, key, KEYS, first)) hide<Call>(scores, query, key, first);
            soften(scores, largest, totals, sums, scale * LOG2_E);
            weigh<M>(sums, scores, values);
        }
        mma::wait_for_copies();
        __syncthreads();
    }
    #pragma unroll
    for (int row = 0; row < 2; row++) {
        const float total = over_quad<Sum>(totals[row]);
        const int s = query + (int)threadIdx.x % 32 / 4 + 8 * row;
        if (threadIdx.x % 4 == 0 && s < Call::queries)
            logsumexp[head * Call::queries + s] = total == 0 ? -INFINITY : largest[row] * scale + log(total);
        // A row that nothing is kept of gives zeros.
        totals[row] = total == 0 ? 0.0f : 1 / total;
    }
    M::put(keys + warp * 16 * M::WIDTH, sums, totals[0], totals[1], Out::of(out, b, h, query), Out::step, left);
}

}  // namespace attention
