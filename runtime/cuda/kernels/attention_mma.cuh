// Attention of f16 and bf16 by tensor cores (Dao, arXiv 2307.08691): a warp has 16 queries, whose scores and weights
// never leave its registers, and goes through the keys in tiles that a block shares. After attention.cuh and mma.cuh.

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

// A score under an element of a mask: a byte keeps the product or hides it, a float is added to the scaled product.
DEVICE float with_mask(float product, float, u8 keeps) { return keeps ? product : -INFINITY; }
template <class M> DEVICE float with_mask(float product, float scale, M added) {
    return fma(product, scale, (float)widen(added));
}

// Makes scores of the products of 16 queries and `N` eights of keys under a mask: −∞ for a key that is hidden or is not
// there. If `PAIRED`, the mask's elements for two neighbouring keys are read at once.
template <class Call, class Mask, bool PAIRED, int N, class M>
DEVICE void mask_products(float (&scores)[N][4], const M* mask, float scale, int batch, int head, int query, int key,
                          int first) {
    const int own = key + 2 * ((int)threadIdx.x % 4);
    #pragma unroll
    for (int row = 0; row < 2; row++) {
        const int s = query + (int)threadIdx.x % 32 / 4 + 8 * row;
        const M* const from = mask + Mask::at(batch, head, s, own);
        // The query sees the keys before this index, counted from the thread's first key.
        int end = Call::causal && first + s + 1 < (int)Call::keys ? first + s + 1 : (int)Call::keys;
        end = s < (int)Call::queries ? end - own : 0;
        #pragma unroll
        for (int i = 0; i < N; i++) {
            const bool sees[2] = {8 * i < end, 8 * i + 1 < end};
            Pack<M, 2> elements;
            if (PAIRED && sees[0]) elements = load<2>(from + 8 * i);
            #pragma unroll
            for (int j = 0; j < 2; j++) {
                if (!PAIRED && sees[j]) elements.at[j] = from[Mask::at(0, 0, 0, 8 * i + j)];
                float& x = scores[i][2 * row + j];
                x = sees[j] ? with_mask(x, scale, elements.at[j]) : -INFINITY;
            }
        }
    }
}

// Whether a mask is added to scores. Scores are then scaled products; otherwise they are products, and scaled in the
// exponent.
template <class Mask, class M> struct Added { static constexpr bool IS = Mask::IS_ONE && sizeof(M) > 1; };

// 2 to the power of a score times `unit`, relative to a base. Without an added mask the base is multiplied by the unit
// already, and the exponent is one multiply-add. An added mask may be so huge that such a product overflows.
template <bool ADDED> DEVICE float power_of(float score, float base, float unit) {
    return mma::power_of_two(ADDED ? (score - base) * unit : fma(score, unit, -base));
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
template <bool ADDED, int N, int WIDTH>
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
        const float base = next == -INFINITY ? 0.0f : ADDED ? next : next * unit;
        const float factor = power_of<ADDED>(largest[row], base, unit);
        float total = 0;
        #pragma unroll
        for (int i = 0; i < N * 2; i++) {
            float& x = scores[i / 2][2 * row + i % 2];
            total += x = power_of<ADDED>(x, base, unit);
        }
        totals[row] = fma(totals[row], factor, total);
        largest[row] = next;
        #pragma unroll
        for (int i = 0; i < WIDTH; i++) sums[i][2 * row] *= factor, sums[i][2 * row + 1] *= factor;
    }
}

// `16 * WARPS` queries a block, `KEYS` keys at a time. Shared memory holds `STAGES` tiles of keys and values: a block
// computes one of them while the others are copied.
template <class Call, class Q, class K, class V, class Out, class Mask, bool PAIRED, int WARPS, int KEYS, int STAGES,
          class T, class M>
DEVICE void forward_mma(const T* q, const T* k, const T* v, const M* mask, T* out, float* logsumexp, float scale,
                        int first) {
    typedef mma::Matrix<T, (int)Call::width> QK;
    typedef mma::Matrix<T, (int)Call::value_width> VO;
    constexpr int THREADS = 32 * WARPS, ROWS = 16 * WARPS, STAGE = KEYS * (QK::STRIDE + VO::STRIDE);
    constexpr bool ADDED = Added<Mask, M>::IS;
    static_assert(ROWS * VO::STRIDE <= STAGES * STAGE, "results go through the same memory");
    SHARED(mma::Room, memory, (STAGES * STAGE + 127) / 128);
    T* const tiles = (T*)memory;
    constexpr int blocks = ((int)Call::queries + ROWS - 1) / ROWS, all = (int)Call::keys;
    const int head = (int)blockIdx.x / blocks, b = head / (int)Call::heads, h = head % (int)Call::heads;
    // Those that see most come first.
    const int start = (blocks - 1 - (int)blockIdx.x % blocks) * ROWS, warp = (int)threadIdx.x / 32;
    const int group = h / (int)Call::group, query = start + warp * 16, left = (int)Call::queries - query;
    const int end = keys_seen<Call>(start + ROWS, first);
    const T* const keys_at = K::of(k, b, group, 0);
    const T* const values_at = V::of(v, b, group, 0);
    // The copies of a tile are a group. Behind the last tile groups are empty: a wait counts groups.
    const auto fill = [&](T* to, int key) {
        if (key < end) {
            QK::template fill<KEYS, THREADS>(to, keys_at + key * K::step, K::step, all - key);
            VO::template fill<KEYS, THREADS>(to + KEYS * QK::STRIDE, values_at + key * V::step, V::step, all - key);
        }
        mma::close_copies();
    };
    #pragma unroll
    for (int stage = 0; stage < STAGES - 1; stage++) fill(tiles + stage * STAGE, stage * KEYS);
    u32 queries[QK::WIDTH / 16][4];
    left_sides<QK>(queries, Q::of(q, b, h, query), Q::step, left);
    float sums[VO::GROUPS][4], largest[2] = {-INFINITY, -INFINITY}, totals[2] = {0, 0};
    clear(sums);
    int stage = 0, free = STAGES - 1;
    for (int key = 0; key < end; key += KEYS) {
        const T* const keys = tiles + stage * STAGE;
        mma::wait_for_copies_but<STAGES - 2>();
        // All warps have read the tile before this one. The next copies take its place.
        __syncthreads();
        fill(tiles + free * STAGE, key + (STAGES - 1) * KEYS);
        free = stage;
        if (++stage == STAGES) stage = 0;
        if (left <= 0 || !sees_any<Call>(query, key, first)) continue;
        float scores[KEYS / 8][4];
        rows_by_rows<QK>(scores, queries, keys);
        if constexpr (Mask::IS_ONE) mask_products<Call, Mask, PAIRED>(scores, mask, scale, b, h, query, key, first);
        else if (!sees_all<Call>(query, key, KEYS, first)) hide<Call>(scores, query, key, first);
        soften<ADDED>(scores, largest, totals, sums, ADDED ? LOG2_E : scale * LOG2_E);
        weigh<VO>(sums, scores, keys + KEYS * QK::STRIDE);
    }
    __syncthreads();
    #pragma unroll
    for (int row = 0; row < 2; row++) {
        const float total = over_quad<Sum>(totals[row]);
        const int s = query + (int)threadIdx.x % 32 / 4 + 8 * row;
        const float score = ADDED ? largest[row] : largest[row] * scale;
        if (threadIdx.x % 4 == 0 && s < Call::queries)
            logsumexp[head * Call::queries + s] = total == 0 ? -INFINITY : score + log(total);
        // A row that nothing is kept of gives zeros.
        totals[row] = total == 0 ? 0.0f : 1 / total;
    }
    VO::put(tiles + warp * 16 * VO::STRIDE, sums, totals[0], totals[1], Out::of(out, b, h, query), Out::step, left);
}

}  // namespace attention
