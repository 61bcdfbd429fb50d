// Attention for every type, width and mask: tiles of queries against tiles of keys, with a softmax that goes along
// (Milakov and Gimelshein, arXiv 1805.02867; Dao et al., arXiv 2205.14135). Scores are never in memory.

namespace attention {

// Sizes of a call: `GROUP` query heads share a key-value head.
template <int Heads, int Group, int Queries, int Keys, int Width, int ValueWidth, bool Causal> struct Call {
    static constexpr int heads = Heads, group = Group, queries = Queries, keys = Keys;
    static constexpr int width = Width, value_width = ValueWidth;
    static constexpr bool causal = Causal;
};

// Where the rows of a tensor `[batch, head, position, feature]` begin; features are neighbours.
template <i64 Batch, i64 Head, i64 Position> struct Rows {
    static constexpr i64 step = Position;
    template <class T> DEVICE T* of(T* start, i64 batch, i64 head, i64 position) {
        return start + batch * Batch + head * Head + position * Position;
    }
};

struct NoMask {
    static constexpr bool IS_ONE = false;
    template <class C> DEVICE C of(C score, const u8*, i64, i64, i64, i64) { return score; }
};

// A mask by its strides: a byte keeps a score or hides it, a float is added.
template <i64 Batch, i64 Head, i64 Query, i64 Key> struct Mask {
    static constexpr bool IS_ONE = true;
    DEVICE i64 at(i64 batch, i64 head, i64 query, i64 key) {
        return batch * Batch + head * Head + query * Query + key * Key;
    }
    template <class C> DEVICE C of(C score, const u8* mask, i64 batch, i64 head, i64 query, i64 key) {
        return mask[at(batch, head, query, key)] ? score : (C)-INFINITY;
    }
    template <class C, class M> DEVICE C of(C score, const M* mask, i64 batch, i64 head, i64 query, i64 key) {
        return score + (C)widen(mask[at(batch, head, query, key)]);
    }
};

// Terms of a product that are in shared memory at a time.
constexpr int DEPTH = 32;

// What a block of `(SIZE / 4)²` threads does with tiles of `SIZE` rows and columns: a thread has 4 rows of a product and
// 4 neighbouring columns of each `SIZE`. A panel is `[term][row or column]`. `PACK` elements are read at once.
template <class C, int Size, int PACK> struct Tile {
    static constexpr int SIZE = Size, LANES = Size / 4, THREADS = LANES * LANES;
    typedef Pack<C, 4> Four;

    DEVICE int row() { return (int)threadIdx.x / LANES * 4; }
    DEVICE int column() { return (int)threadIdx.x % LANES * 4; }

    // Where an element of a panel stands: groups of four change places so that threads meet in no bank.
    DEVICE int place(int term, int index) { return term * SIZE + (index ^ (term >> 2 & 7) << 2); }

    template <class T> DEVICE Pack<T, PACK> read(const T* from, bool there) {
        if (there) return load<PACK>(from);
        Pack<T, PACK> nothing;
        #pragma unroll
        for (int e = 0; e < PACK; e++) nothing.at[e] = narrow<T>((C)0);
        return nothing;
    }

    // A panel of `SIZE` rows: terms lie along a row. Zeros where there is nothing.
    template <class T> DEVICE void fill_across(C* panel, const T* from, i64 step, int rows, int terms) {
        for (int i = threadIdx.x; i < SIZE * DEPTH / PACK; i += THREADS) {
            const int index = i / (DEPTH / PACK), term = i % (DEPTH / PACK) * PACK;
            const Pack<T, PACK> pack = read(from + index * step + term, index < rows && term < terms);
            #pragma unroll
            for (int e = 0; e < PACK; e++) panel[place(term + e, index)] = (C)widen(pack.at[e]);
        }
    }

    // `N` panels of `SIZE` columns: a row is a term.
    template <int N, class T> DEVICE void fill_along(C* panels, const T* from, i64 step, int rows, int columns) {
        for (int i = threadIdx.x; i < SIZE * N * DEPTH / PACK; i += THREADS) {
            const int term = i / (SIZE * N / PACK), index = i % (SIZE * N / PACK) * PACK;
            const Pack<T, PACK> pack = read(from + term * step + index, term < rows && index < columns);
            C* const panel = panels + index / SIZE * (SIZE * DEPTH);
            #pragma unroll
            for (int e = 0; e < PACK; e++) panel[place(term, index % SIZE + e)] = (C)widen(pack.at[e]);
        }
    }

    // Adds the product of two panels' terms.
    template <int N> DEVICE void multiply(C (&sums)[4][4 * N], const C* left, const C* right) {
        #pragma unroll 4
        for (int term = 0; term < DEPTH; term++) {
            const Four x = load<4>(left + place(term, row()));
            #pragma unroll
            for (int n = 0; n < N; n++) {
                const Four y = load<4>(right + n * (SIZE * DEPTH) + place(term, column()));
                #pragma unroll
                for (int i = 0; i < 4; i++)
                    #pragma unroll
                    for (int j = 0; j < 4; j++) sums[i][n * 4 + j] = fma(x.at[i], y.at[j], sums[i][n * 4 + j]);
            }
        }
    }

    // Products of rows with rows: `x` has as many there are from the first on, `y` too. All threads must come here.
    template <int WIDTH, class T>
    DEVICE void rows_by_rows(C (&products)[4][4], C* panels, const T* x, i64 x_step, int x_rows, const T* y, i64 y_step,
                             int y_rows) {
        #pragma unroll
        for (int i = 0; i < 16; i++) products[i / 4][i % 4] = 0;
        int from = 0;
        do {
            __syncthreads();
            fill_across(panels, x + from, x_step, x_rows, WIDTH - from);
            fill_across(panels + SIZE * DEPTH, y + from, y_step, y_rows, WIDTH - from);
            __syncthreads();
            multiply<1>(products, panels, panels + SIZE * DEPTH);
        } while ((from += DEPTH) < WIDTH);
    }

    // `sums = sums * factors + weights · rows`, for the panel `weights` of `SIZE` terms, a term a row. All threads must
    // come here.
    template <int N, class T>
    DEVICE void weigh(C (&sums)[4][4 * N], const C (&factors)[4], const C* weights, C* panels, const T* from, i64 step,
                      int rows, int columns) {
        C own[4][4 * N];
        #pragma unroll
        for (int i = 0; i < 16 * N; i++) own[i / (4 * N)][i % (4 * N)] = 0;
        for (int term = 0; term < SIZE && (term == 0 || term < rows); term += DEPTH) {
            __syncthreads();
            fill_along<N>(panels, from + term * step, step, rows - term, columns);
            __syncthreads();
            multiply<N>(own, weights + term * SIZE, panels);
        }
        #pragma unroll
        for (int i = 0; i < 4; i++)
            #pragma unroll
            for (int j = 0; j < 4 * N; j++) sums[i][j] = fma(sums[i][j], factors[i], own[i][j]);
    }

    // The thread's part of a tile as a panel whose terms are the tile's rows, or its columns.
    DEVICE void rows_as_terms(C* panel, const C (&x)[4][4]) {
        #pragma unroll
        for (int i = 0; i < 4; i++) store_shared(panel + place(row() + i, column()), Four{x[i][0], x[i][1], x[i][2], x[i][3]});
    }
    DEVICE void columns_as_terms(C* panel, const C (&x)[4][4]) {
        #pragma unroll
        for (int j = 0; j < 4; j++) store_shared(panel + place(column() + j, row()), Four{x[0][j], x[1][j], x[2][j], x[3][j]});
    }

    // What the threads of a row have, combined.
    template <class Combine> DEVICE C over_row(C x) {
        #pragma unroll
        for (int offset = LANES / 2; offset > 0; offset /= 2)
            x = Combine::of(x, __shfl_xor_sync(0xffffffffu, x, offset));
        return x;
    }

    // Row `i` of sums becomes part of a row of a result.
    template <int N, class T> DEVICE void put(T* to, const C (&sums)[4 * N], C factor, int columns) {
        #pragma unroll
        for (int n = 0; n < N; n++) {
            const int at = n * SIZE + column();
            if (PACK > 1 && at < columns) {
                Pack<T, 4> pack;
                #pragma unroll
                for (int j = 0; j < 4; j++) pack.at[j] = narrow<T>(sums[n * 4 + j] * factor);
                store(to + at, pack);
            }
            #pragma unroll
            for (int j = 0; PACK == 1 && j < 4; j++)
                if (at + j < columns) to[at + j] = narrow<T>(sums[n * 4 + j] * factor);
        }
    }
};

// Makes scores of products: scaled, masked, −∞ where a key is hidden or there is none.
template <class Call, class Tile, class Mask, class C, class M>
DEVICE void masked(C (&scores)[4][4], C scale, const M* mask, int batch, int head, int query, int key, int first) {
    #pragma unroll
    for (int i = 0; i < 4; i++)
        #pragma unroll
        for (int j = 0; j < 4; j++) {
            const int s = query + Tile::row() + i, t = key + Tile::column() + j;
            const bool there = s < Call::queries && t < Call::keys && !(Call::causal && t > first + s);
            scores[i][j] = there ? Mask::of(scores[i][j] * scale, mask, batch, head, s, t) : (C)-INFINITY;
        }
}

// The keys that the queries of a tile see.
template <class Call, class Tile> DEVICE int keys_seen(int query, int first) {
    const int seen = first + query + Tile::SIZE;
    return Call::causal && seen < Call::keys ? seen : Call::keys;
}

// What a block computes: a tile of rows of a head of a batch element. Those of causal attention that see most come first.
struct Work {
    int batch, head, start;

    template <class Call, class Tile> DEVICE Work of(int heads, int rows, bool last_first) {
        const int tiles = (rows + Tile::SIZE - 1) / Tile::SIZE, tile = (int)blockIdx.x % tiles;
        const int head = (int)blockIdx.x / tiles;
        return Work{head / heads, head % heads, (last_first ? tiles - 1 - tile : tile) * Tile::SIZE};
    }
};

// Weights of a tile's keys in place of their scores, and what they make of the sums so far.
template <class Tile, class C>
DEVICE void soften(C (&scores)[4][4], C (&largest)[4], C (&totals)[4], C (&factors)[4]) {
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        const C own = larger(larger(scores[i][0], scores[i][1]), larger(scores[i][2], scores[i][3]));
        const C next = larger(largest[i], Tile::template over_row<Largest>(own));
        // Nothing was kept so far: any number will do to count from.
        const C base = next == (C)-INFINITY ? (C)0 : next;
        factors[i] = exp(largest[i] - base);
        totals[i] *= factors[i];
        #pragma unroll
        for (int j = 0; j < 4; j++) totals[i] += scores[i][j] = exp(scores[i][j] - base);
        largest[i] = next;
    }
}

// A tile of queries a block; along y the columns of the result, `N` tiles a block.
template <class Call, class Q, class K, class V, class Out, class Mask, class Tile, int N, class C, class T, class M>
DEVICE void forward(const T* q, const T* k, const T* v, const M* mask, T* out, C* logsumexp, C scale, int first) {
    SHARED(typename Tile::Four, weights_memory, Tile::SIZE * Tile::SIZE / 4);
    SHARED(typename Tile::Four, panels_memory, 2 * Tile::SIZE * DEPTH / 4);
    C* const weights = (C*)weights_memory;
    C* const panels = (C*)panels_memory;
    const Work work = Work::of<Call, Tile>(Call::heads, Call::queries, Call::causal);
    const int b = work.batch, h = work.head, group = h / Call::group, query = work.start;
    const int left = (int)blockIdx.y * (N * Tile::SIZE), columns = Call::value_width - left;
    C largest[4], totals[4] = {0, 0, 0, 0}, factors[4], sums[4][4 * N];
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        largest[i] = (C)-INFINITY;
        #pragma unroll
        for (int j = 0; j < 4 * N; j++) sums[i][j] = 0;
    }
    const int end = keys_seen<Call, Tile>(query, first);
    for (int key = 0; key < end; key += Tile::SIZE) {
        C scores[4][4];
        Tile::template rows_by_rows<Call::width>(scores, panels, Q::of(q, b, h, query), Q::step, Call::queries - query,
                                                 K::of(k, b, group, key), K::step, Call::keys - key);
        masked<Call, Tile, Mask>(scores, scale, mask, b, h, query, key, first);
        soften<Tile>(scores, largest, totals, factors);
        Tile::columns_as_terms(weights, scores);
        Tile::template weigh<N>(sums, factors, weights, panels, V::of(v, b, group, key) + left, V::step,
                                Call::keys - key, columns);
    }
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        const C total = Tile::template over_row<Sum>(totals[i]);
        const int s = query + Tile::row() + i;
        if (s >= Call::queries) continue;
        // A row that nothing is kept of gives zeros.
        const bool empty = largest[i] == (C)-INFINITY;
        Tile::template put<N>(Out::of(out, b, h, s) + left, sums[i], empty ? (C)0 : 1 / total, columns);
        if (blockIdx.y == 0 && Tile::column() == 0)
            logsumexp[(i64)(b * Call::heads + h) * Call::queries + s] = empty ? largest[i] : largest[i] + log(total);
    }
}

}  // namespace attention
