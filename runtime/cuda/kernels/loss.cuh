// Cross-entropy over a large vocabulary: each row of logits is read once, and its probabilities are not stored.

namespace loss {

// The threads that share a row: a block of whole warps, or one warp.
template <int Threads> struct Team {
    static constexpr u32 size = Threads;
    DEVICE i64 row() { return blockIdx.x; }
    DEVICE u32 member() { return threadIdx.x; }
    DEVICE void wait() { __syncthreads(); }
    template <class Combine, class T> DEVICE T over(T x) { return over_block<Combine>(x); }
};
template <> struct Team<32> {
    static constexpr u32 size = 32;
    DEVICE i64 row() { return thread_index() / 32; }
    DEVICE u32 member() { return threadIdx.x % 32; }
    DEVICE void wait() { __syncwarp(); }
    template <class Combine, class T> DEVICE T over(T x) { return over_warp<Combine>(x); }
};

// What a thread looks at together: element `e` of pack `p` stands at `place + p * apart + e` of its row.
template <class T, int N, int Packs> struct Chunk {
    Pack<T, N> packs[Packs];
    i64 place, apart;
};

// Reads a chunk of a row, from a place on.
template <int N, int Packs, class T> DEVICE Chunk<T, N, Packs> chunk(const T* row, i64 place, i64 apart) {
    Chunk<T, N, Packs> chunk;
    chunk.place = place;
    chunk.apart = apart;
#pragma unroll
    for (int p = 0; p < Packs; p++) chunk.packs[p] = load<N>(row + place + p * apart);
    return chunk;
}

// Has `reader` see a row, chunk by chunk, so that the team sees each element once. A row may begin anywhere: what lies
// before the first place for a pack and after the last is shown element by element.
template <class Team, i64 Classes, int N, class T, class Reader> DEVICE void walk(const T* row, Reader& reader) {
    constexpr int PACKS = N >= 16 ? 1 : 16 / N;
    const i64 own = Team::member(), apart = (i64)Team::size * N;
    i64 head = (N - (i64)((u64)row / sizeof(T) % N)) % N;
    if (head > Classes) head = Classes;
    const i64 packs = (Classes - head) / N, rest = head + packs * N;
    if (own < head) see(reader, chunk<1, 1>(row, own, 0));
    i64 pack = own;
    for (; pack + (PACKS - 1) * (i64)Team::size < packs; pack += PACKS * (i64)Team::size)
        see(reader, chunk<N, PACKS>(row, head + pack * N, apart));
    for (; pack < packs; pack += Team::size) see(reader, chunk<N, 1>(row, head + pack * N, 0));
    if (rest + own < Classes) see(reader, chunk<1, 1>(row, rest + own, 0));
}

// The class of a position, or -1 if the position does not count.
template <class L> DEVICE i64 counted(L label, i64 ignored, i64 classes) {
    const i64 own = (i64)label;
    return own >= 0 && own < classes && own != ignored ? own : -1;
}

// What exponents are relative to: of nothing but -infinity nothing, so that it leaves no NaN.
template <class C> DEVICE C shift(C largest) { return largest == (C)-INFINITY ? (C)0 : largest; }

// Numbers that have come: the largest, the sum of e to what each is beyond it, and, for smoothing, their own sum.
template <class C, bool Smooth> struct Seen {
    C largest = (C)-INFINITY, exponentials = (C)0, plain = (C)0;
};

template <class C, bool Smooth, class T, int N, int Packs>
DEVICE void see(Seen<C, Smooth>& seen, const Chunk<T, N, Packs>& chunk) {
    C x[N * Packs];
    C largest = seen.largest, sum = (C)0, plain = (C)0;
#pragma unroll
    for (int i = 0; i < N * Packs; i++) largest = larger(largest, x[i] = widen(chunk.packs[i / N].at[i % N]));
    const C by = shift(largest);
#pragma unroll
    for (int i = 0; i < N * Packs; i++) {
        sum += exp(x[i] - by);
        if (Smooth) plain += x[i];
    }
    seen.exponentials = seen.exponentials * exp(seen.largest - by) + sum;
    seen.largest = largest;
    seen.plain += plain;
}

// A team a row: its logsumexp, and its loss in f64, 0 where it does not count. `Step` is the distance between rows.
template <class Team, bool Smooth, i64 Rows, i64 Classes, i64 Step, int N, class T, class C, class L>
DEVICE void rows(const T* logits, const L* labels, C* logsumexps, double* losses, i64 ignored, double smoothing) {
    const i64 own = Team::row();
    if (own >= Rows) return;
    const T* const row = logits + own * Step;
    Seen<C, Smooth> seen;
    walk<Team, Classes, N>(row, seen);
    const C largest = Team::template over<Largest>(seen.largest);
    const C part = seen.exponentials * exp(seen.largest - shift(largest));
    // Where numbers are large, their logsumexp has lost what this says.
    const C beyond = log(Team::template over<Sum>(part));
    const C plain = Smooth ? Team::template over<Sum>(seen.plain) : (C)0;
    if (Team::member() != 0) return;
    logsumexps[own] = largest + beyond;
    const i64 label = counted(labels[own], ignored, Classes);
    double loss = 0;
    if (label >= 0) loss = (double)beyond + (1 - smoothing) * ((double)largest - (double)widen(row[label]));
    if (label >= 0 && Smooth) loss += smoothing * ((double)largest - (double)plain / Classes);
    losses[own] = loss;
}

// One block: the sum of the rows' losses, and how many rows count.
template <i64 Rows, i64 Classes, class C, class L>
DEVICE void total(const double* losses, const L* labels, C* sum, C* weight, i64 ignored) {
    double loss = 0;
    i64 count = 0;
    for (i64 row = threadIdx.x; row < Rows; row += blockDim.x) {
        loss += losses[row];
        count += counted(labels[row], ignored, Classes) >= 0;
    }
    loss = sum_over_block(loss);
    count = sum_over_block(count);
    if (threadIdx.x != 0) return;
    *sum = (C)loss;
    *weight = (C)count;
}

// A row's gradient, as if no class were its label's; and the sum of e to each logit beyond the logsumexp.
template <class T, class C> struct Gradient {
    T* out;
    C logsumexp, uniform, factor, sum;
};

template <class T, class C, int N, int Packs>
DEVICE void see(Gradient<T, C>& row, const Chunk<T, N, Packs>& chunk) {
    C sum = (C)0;
#pragma unroll
    for (int p = 0; p < Packs; p++) {
        Pack<T, N> made;
#pragma unroll
        for (int e = 0; e < N; e++) {
            const C x = exp((C)widen(chunk.packs[p].at[e]) - row.logsumexp);
            sum += x;
            made.at[e] = narrow<T>(row.factor * (x - row.uniform));
        }
        store(row.out + chunk.place + p * chunk.apart, made);
    }
    row.sum += sum;
}

// A team a row: `factor * (softmax(row) - target)`, zeros where the row does not count. The row has `Classes` of `all`
// classes, from `start` on; the gradient may lie where the logits are. Rows of logits are `Step` apart, those of the gradient
// `OutStep`.
template <class Team, i64 Rows, i64 Classes, i64 Step, i64 OutStep, bool Whole, int N, class T, class C, class L>
DEVICE void gradient(const T* logits, const L* labels, const C* logsumexps, const C* factor, T* out, i64 ignored,
                     double smoothing, i64 start, i64 all) {
    const i64 own = Team::row();
    if (own >= Rows) return;
    const T* const row = logits + own * Step;
    T* const to = out + own * OutStep;
    const i64 label = counted(labels[own], ignored, all);
    if (label < 0) {
        const T zero = narrow<T>((C)0);
        for (i64 i = Team::member(); i < Classes; i += Team::size) to[i] = zero;
        return;
    }
    const i64 target = label - start;
    const bool here = target >= 0 && target < Classes;
    const C logit = here ? (C)widen(row[target]) : (C)0;
    Gradient<T, C> made = {to, logsumexps[own], (C)(smoothing / all), *factor, (C)0};
    // Before one writes there all have read the target's logit.
    Team::wait();
    walk<Team, Classes, N>(row, made);
    // The logsumexp of large logits is rounded so that what is left of a sure class would be off in its fourth digit.
    const C share = Whole ? (C)1 / Team::template over<Sum>(made.sum) : (C)1;
    Team::wait();
    if (!here || Team::member() != 0) return;
    const C rest = exp(logit - made.logsumexp) * share - made.uniform - (C)(1 - smoothing);
    to[target] = narrow<T>(made.factor * rest);
}

}  // namespace loss
