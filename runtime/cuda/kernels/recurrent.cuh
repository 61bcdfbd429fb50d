// Recurrent layers and their gradients, one launch for each step. The state between two steps is in scratch, in the type in which it is
// computed: a step reads the states of all units, and writes those after the step beside them. One thread alone reads and writes the cell
// state of a unit.

namespace recurrent {

// The cells, as in the compiler: LSTM, GRU, RNN with tanh, RNN with relu.
enum Cell { LSTM, GRU, RNN, RNN_RELU };

// The entries of the batch for which a warp computes a unit, or a thread the gradient of one: they share the reads of the weight.
constexpr int ENTRIES = 4;

template <class C> DEVICE C sigmoid(C x) { return (C)1 / ((C)1 + (C)exp(-x)); }

// Stands for the lengths of a layer whose entries all have all steps.
struct Whole {};

// Whether an entry has a step.
DEVICE bool has(Whole, i64, i64) { return true; }
template <class L> DEVICE bool has(const L* lengths, i64 step, i64 entry) { return step < (i64)lengths[entry]; }

// Copies the first states to scratch. Only an LSTM has cell states.
template <i64 Count, class C, class T> DEVICE void start(const T* hidden, const T* cell, C* state, C* cells, bool has_cell) {
    const i64 i = thread_index();
    if (i >= Count) return;
    state[i] = widen(hidden[i]);
    if (has_cell) cells[i] = widen(cell[i]);
}

// Stores the last states.
template <i64 Count, class C, class T>
DEVICE void finish(const C* state, const C* cells, T* last, T* last_cell, bool has_cell) {
    const i64 i = thread_index();
    if (i >= Count) return;
    last[i] = narrow<T>(state[i]);
    if (has_cell) last_cell[i] = narrow<T>(cells[i]);
}

// The products of the states of some entries with the rows of a unit in the weight; all threads of a warp get them.
template <int Gates, i64 Batch, i64 Units, class C, class T>
DEVICE void multiply(const C* state, const T* weight, i64 first, i64 unit, C (&sums)[Gates][ENTRIES]) {
    #pragma unroll
    for (int gate = 0; gate < Gates; gate++) {
        #pragma unroll
        for (int e = 0; e < ENTRIES; e++) sums[gate][e] = (C)0;
    }
    for (i64 k = threadIdx.x % 32; k < Units; k += 32) {
        C factors[Gates];
        #pragma unroll
        for (int gate = 0; gate < Gates; gate++) factors[gate] = widen(weight[(gate * Units + unit) * Units + k]);
        #pragma unroll
        for (int e = 0; e < ENTRIES; e++) {
            const C own = first + e < Batch ? state[(first + e) * Units + k] : (C)0;
            #pragma unroll
            for (int gate = 0; gate < Gates; gate++) sums[gate][e] += factors[gate] * own;
        }
    }
    #pragma unroll
    for (int gate = 0; gate < Gates; gate++) {
        #pragma unroll
        for (int e = 0; e < ENTRIES; e++) sums[gate][e] = over_warp<Sum>(sums[gate][e]);
    }
}

// A step. A warp computes a unit of some entries; its threads take an entry each for the gates.
template <Cell Kind, i64 Batch, i64 Units, class C, class T, class Length>
DEVICE void step(const T* x, const T* weight, const T* bias, Length lengths, i64 number, const C* state, C* next, C* cells, T* y, T* gates, T* kept) {
    constexpr int GATES = Kind == LSTM ? 4 : Kind == GRU ? 3 : 1;
    const i64 warp = thread_index() / 32, unit = warp % Units, first = warp / Units * ENTRIES;
    if (first >= Batch) return;
    C sums[GATES][ENTRIES];
    multiply<GATES, Batch, Units>(state, weight, first, unit, sums);
    #pragma unroll
    for (int e = 0; e < ENTRIES; e++) {
        const i64 entry = first + e, at = entry * Units + unit;
        if ((int)(threadIdx.x % 32) != e || entry >= Batch) continue;
        if (!has(lengths, number, entry)) {
            next[at] = state[at];
            y[at] = narrow<T>((C)0);
            if constexpr (Kind == LSTM) kept[at] = narrow<T>((C)0);
            if constexpr (Kind == LSTM || Kind == GRU) {
                for (int gate = 0; gate < 4; gate++) gates[(entry * 4 + gate) * Units + unit] = narrow<T>((C)0);
            }
            continue;
        }
        const T* const own = x + entry * GATES * Units + unit;
        C made;
        if constexpr (Kind == LSTM) {
            const C i = sigmoid(widen(own[0]) + sums[0][e]), o = sigmoid(widen(own[Units]) + sums[1][e]);
            const C f = sigmoid(widen(own[2 * Units]) + sums[2][e]), g = (C)tanh(widen(own[3 * Units]) + sums[3][e]);
            const C cell = f * cells[at] + i * g;
            cells[at] = cell;
            kept[at] = narrow<T>(cell);
            const C all[4] = {i, o, f, g};
            #pragma unroll
            for (int gate = 0; gate < 4; gate++) gates[(entry * 4 + gate) * Units + unit] = narrow<T>(all[gate]);
            made = o * (C)tanh(cell);
        } else if constexpr (Kind == GRU) {
            const C z = sigmoid(widen(own[0]) + sums[0][e] + widen(bias[unit]));
            const C r = sigmoid(widen(own[Units]) + sums[1][e] + widen(bias[Units + unit]));
            const C q = sums[2][e] + widen(bias[2 * Units + unit]);
            const C n = (C)tanh(widen(own[2 * Units]) + r * q);
            const C all[4] = {z, r, n, q};
            #pragma unroll
            for (int gate = 0; gate < 4; gate++) gates[(entry * 4 + gate) * Units + unit] = narrow<T>(all[gate]);
            made = n + z * (state[at] - n);
        } else if constexpr (Kind == RNN) {
            made = (C)tanh(widen(own[0]) + sums[0][e]);
        } else {
            made = larger(widen(own[0]) + sums[0][e], (C)0);
        }
        next[at] = made;
        y[at] = narrow<T>(made);
    }
}

// Copies the gradients of the last states to scratch. No step has been before, so there are no gradients of sums.
template <i64 States, i64 Sums, class C, class T>
DEVICE void start_gradient(const T* dlast, const T* dlast_cell, C* dstate, C* dcells, C* dsums, bool has_cell) {
    const i64 i = thread_index();
    if (i < Sums) dsums[i] = (C)0;
    if (i >= States) return;
    dstate[i] = widen(dlast[i]);
    if (has_cell) dcells[i] = widen(dlast_cell[i]);
}

// The gradient of the state after a step: the direct gradient plus the gradient through the sums of the following step.
template <i64 Batch, i64 Units, i64 Width, class C, class T>
DEVICE void through(const C* dsums, const T* weight, const C* dstate, i64 first, i64 unit, C (&d)[ENTRIES]) {
    #pragma unroll
    for (int e = 0; e < ENTRIES; e++) d[e] = first + e < Batch ? dstate[(first + e) * Units + unit] : (C)0;
    for (i64 gate = 0; gate < Width; gate++) {
        const C factor = widen(weight[gate * Units + unit]);
        #pragma unroll
        for (int e = 0; e < ENTRIES; e++) {
            if (first + e < Batch) d[e] += factor * dsums[(first + e) * Width + gate];
        }
    }
}

// The gradient of a step: of its sums, and of the states before it. A thread has a unit of some entries. `before` leads from an entry's row
// to that of the step before, and `begins` is whether no step is before.
template <Cell Kind, i64 Batch, i64 Units, class C, class T, class Length>
DEVICE void step_gradient(const T* weight, Length lengths, i64 number, i64 before, bool begins, const T* first_state, const T* y, const T* gates, const T* kept, const T* dy, C* dstate, C* dcells, const C* dbehind, C* dsums, T* dx, T* dproduct) {
    constexpr int GATES = Kind == LSTM ? 4 : Kind == GRU ? 3 : 1;
    constexpr i64 WIDTH = GATES * Units;
    const i64 thread = thread_index(), unit = thread % Units, first = thread / Units * ENTRIES;
    if (first >= Batch) return;
    C through_weight[ENTRIES];
    through<Batch, Units, WIDTH>(dbehind, weight, dstate, first, unit, through_weight);
    #pragma unroll
    for (int e = 0; e < ENTRIES; e++) {
        const i64 entry = first + e, at = entry * Units + unit, row = entry * WIDTH + unit;
        if (entry >= Batch) continue;
        if (!has(lengths, number, entry)) {
            dstate[at] = through_weight[e];
            for (int gate = 0; gate < GATES; gate++) {
                dsums[row + gate * Units] = (C)0;
                dx[row + gate * Units] = narrow<T>((C)0);
                if constexpr (Kind == GRU) dproduct[row + gate * Units] = narrow<T>((C)0);
            }
            continue;
        }
        const C d = through_weight[e] + widen(dy[at]);
        const bool is_first = begins || !has(lengths, number + (before > 0 ? 1 : -1), entry);
        if constexpr (Kind == LSTM) {
            C all[4];
            #pragma unroll
            for (int gate = 0; gate < 4; gate++) all[gate] = widen(gates[(entry * 4 + gate) * Units + unit]);
            const C i = all[0], o = all[1], f = all[2], g = all[3];
            const C old = widen(is_first ? first_state[at] : kept[before + at]), shown = (C)tanh(widen(kept[at]));
            const C dcell = dcells[at] + d * o * ((C)1 - shown * shown);
            const C made[4] = {dcell * g * i * ((C)1 - i), d * shown * o * ((C)1 - o), dcell * old * f * ((C)1 - f),
                               dcell * i * ((C)1 - g * g)};
            dcells[at] = dcell * f;
            dstate[at] = (C)0;
            #pragma unroll
            for (int gate = 0; gate < 4; gate++) {
                dsums[row + gate * Units] = made[gate];
                dx[row + gate * Units] = narrow<T>(made[gate]);
            }
        } else if constexpr (Kind == GRU) {
            C all[4];
            #pragma unroll
            for (int gate = 0; gate < 4; gate++) all[gate] = widen(gates[(entry * 4 + gate) * Units + unit]);
            const C z = all[0], r = all[1], n = all[2], q = all[3];
            const C old = widen(is_first ? first_state[at] : y[before + at]);
            const C dnew = d * ((C)1 - z) * ((C)1 - n * n);
            const C made[3] = {d * (old - n) * z * ((C)1 - z), dnew * q * r * ((C)1 - r), dnew};
            dstate[at] = d * z;
            #pragma unroll
            for (int gate = 0; gate < 3; gate++) {
                const C product = gate == 2 ? dnew * r : made[gate];
                dsums[row + gate * Units] = product;
                dx[row + gate * Units] = narrow<T>(made[gate]);
                dproduct[row + gate * Units] = narrow<T>(product);
            }
        } else {
            const C own = widen(y[at]);
            const C made = Kind == RNN ? d * ((C)1 - own * own) : own > (C)0 ? d : (C)0;
            dstate[at] = (C)0;
            dsums[row] = made;
            dx[row] = narrow<T>(made);
        }
    }
}

// Stores the gradients of the first states.
template <i64 Batch, i64 Units, i64 Width, class C, class T>
DEVICE void finish_gradient(const C* dbehind, const T* weight, const C* dstate, const C* dcells, T* dhidden, T* dfirst_cell, bool has_cell) {
    const i64 thread = thread_index(), unit = thread % Units, first = thread / Units * ENTRIES;
    if (first >= Batch) return;
    C d[ENTRIES];
    through<Batch, Units, Width>(dbehind, weight, dstate, first, unit, d);
    #pragma unroll
    for (int e = 0; e < ENTRIES; e++) {
        const i64 at = (first + e) * Units + unit;
        if (first + e >= Batch) continue;
        dhidden[at] = narrow<T>(d[e]);
        if (has_cell) dfirst_cell[at] = narrow<T>(dcells[at]);
    }
}

}  // namespace recurrent
