// Adam with moments in 8 bits: block-wise dynamic quantization (Dettmers et al., arXiv 2110.02861).
//
// The threads of a block update a quantization block at a time: each updates its elements, then all find the largest moments,
// then each writes the codes of its elements.

namespace optimizer_8bit {

// The values of codes: 0, then seven decades of `FIRST`, 2·`FIRST`, 4·`FIRST`… values that divide them evenly, then 1.
template <int FIRST> DEVICE double value(int index) {
    if (index == 0) return 0;
    int parts = FIRST, part = index - 1, decade = 0;
    double power = 1e-6;
    for (; part >= parts && decade < 7; decade++) {
        part -= parts;
        parts *= 2;
        power *= 10;
    }
    return decade == 7 ? 1.0 : power * (0.1 + 0.9 * (part + 0.5) / parts);
}

// The index of the nearest of ascending values, of which `COUNT` are left to choose from; halfway between two values, the lower.
template <int COUNT, class C> DEVICE int nearest(const C* values, C x) {
    int index = 0;
#pragma unroll
    for (int step = 128; step > 0; step /= 2) {
        const int next = index + step;
        if (next < COUNT && (values[next - 1] + values[next]) / 2 < x) index = next;
    }
    return index;
}

// The numbers of a first moment's codes. The code of a negative number is 256 less the code of its magnitude, which is not 1.
template <class C> DEVICE C signed_value(const C* values, u8 code) { return code <= 128 ? values[code] : -values[256 - code]; }
template <class C> DEVICE u8 signed_code(const C* values, C x) {
    if (x < 0) return (u8)-nearest<128>(values, -x);
    return (u8)nearest<129>(values, x);
}

// The states of a parameter: codes of both moments, and the largest magnitude of each block.
template <class B, class F> struct States {
    B* codes[2];
    F* largest[2];
};

// Rows of `ROW` elements, each cut into blocks of `SIZE`, of which the last may be shorter; `THREADS` threads for a block.
template <bool Decoupled, i64 ROWS, i64 ROW, int SIZE, int THREADS, class Gradient, class I, class Operands, class T, class Copied>
DEVICE void adam_8bit(double beta1, double beta2, double eps, const double* rate, const double* decay, const double* step,
                      const Operands& operands, const T* gradient, const T* from, const States<const u8, const T>& old,
                      T* to, const States<u8, T>& states, const Copied& copy) {
    typedef Computed<T> C;
    constexpr int OWN = (SIZE + THREADS - 1) / THREADS;
    constexpr i64 IN_ROW = (ROW + SIZE - 1) / SIZE;
    SHARED(optimizer::AdamRule<C>, rule, 1);
    SHARED(C, first_values, 129);
    SHARED(C, second_values, 256);
    if (threadIdx.x == 0) *rule = optimizer::adam_rule<Decoupled, C>(beta1, beta2, eps, *rate, *decay, *step);
    for (int index = threadIdx.x; index < 129; index += THREADS) first_values[index] = (C)value<1>(index);
    for (int index = threadIdx.x; index < 256; index += THREADS) second_values[index] = (C)value<2>(index);
    __syncthreads();
    const C scale = optimizer::scale_of<C>(operands);
    const bool skips = optimizer::is_skipped(operands);
    for (i64 block = blockIdx.x; block < ROWS * IN_ROW; block += gridDim.x) {
        const i64 in_row = block % IN_ROW * SIZE;
        const i64 start = block / IN_ROW * ROW + in_row;
        const int count = ROW - in_row < SIZE ? (int)(ROW - in_row) : SIZE;
        const T old_first = old.largest[0][block], old_second = old.largest[1][block];
        C first[OWN], second[OWN];
        C largest_first = 0, largest_second = 0;
#pragma unroll
        for (int own = 0; own < OWN; own++) {
            const int element = own * THREADS + threadIdx.x;
            if (element >= count) continue;
            const i64 i = start + element;
            Pack<T, 1> parameter = {{from[i]}};
            if (!skips) {
                C x[3] = {(C)widen(parameter.at[0]), signed_value(first_values, old.codes[0][i]) * (C)widen(old_first),
                          second_values[old.codes[1][i]] * (C)widen(old_second)};
                const C g = (C)widen(gradient[Gradient::at((I)i)]);
                optimizer::apply(*rule, optimizer::scaled(operands, scale, g), x);
                parameter.at[0] = narrow<T>(x[0]);
                first[own] = x[1];
                second[own] = x[2];
                largest_first = larger(largest_first, (C)fabs(x[1]));
                largest_second = larger(largest_second, x[2]);
            }
            to[i] = parameter.at[0];
            optimizer::put(copy, i, parameter);
        }
        // Both ways wait for all threads: each has read the largest magnitudes that the first thread writes below, perhaps in place.
        if (skips) {
            __syncthreads();
        } else {
            largest_first = over_block<Largest>(largest_first);
            largest_second = over_block<Largest>(largest_second);
        }
#pragma unroll
        for (int own = 0; own < OWN; own++) {
            const int element = own * THREADS + threadIdx.x;
            if (element >= count) continue;
            const i64 i = start + element;
            if (skips) {
                states.codes[0][i] = old.codes[0][i];
                states.codes[1][i] = old.codes[1][i];
                continue;
            }
            states.codes[0][i] = first[own] == 0 ? (u8)0 : signed_code(first_values, first[own] / largest_first);
            states.codes[1][i] = second[own] == 0 ? (u8)0 : (u8)nearest<256>(second_values, second[own] / largest_second);
        }
        if (threadIdx.x == 0) {
            states.largest[0][block] = skips ? old_first : narrow<T>(largest_first);
            states.largest[1][block] = skips ? old_second : narrow<T>(largest_second);
        }
    }
}

}  // namespace optimizer_8bit
