// Products of small matrices, by a warp at once: tensor cores, and what brings matrices to them.
//
// A matrix of 8 rows of 8 elements is spread over a warp: thread `l` has the elements `2 (l % 4)` and one more of row
// `l / 4`.

namespace mma {

#ifdef ON_HOST

// Two numbers as two of a type.
template <class T> DEVICE u32 pair(float first, float second) {
    return narrow<T>(first).bits | (u32)narrow<T>(second).bits << 16;
}

DEVICE float power_of_two(float x) { return exp2f(x); }

// A place in shared memory, in bytes.
typedef u64 Place;
DEVICE Place place_of(const void* pointer) { return (Place)pointer; }

// The row of a matrix. A device takes it at a multiple of 16 bytes alone.
DEVICE const u16* row_at(Place row) {
    if (row % 16 != 0) __builtin_trap();
    return (const u16*)row;
}

// Four matrices: thread `8 i + j` says where row `j` of matrix `i` begins.
DEVICE void load(u32 (&to)[4], Place row) {
    const u32 lane = threadIdx.x % 32;
    host::of_warp(row_at(row), [&](auto of) {
        for (u32 i = 0; i < 4; i++) memcpy(&to[i], of(8 * i + lane / 4) + 2 * (lane % 4), 4);
        return 0;
    });
}

// The same, of the transposed matrices.
DEVICE void load_transposed(u32 (&to)[4], Place row) {
    const u32 lane = threadIdx.x % 32, column = lane / 4, first = 2 * (lane % 4);
    host::of_warp(row_at(row), [&](auto of) {
        for (u32 i = 0; i < 4; i++) to[i] = of(8 * i + first)[column] | (u32)of(8 * i + first + 1)[column] << 16;
        return 0;
    });
}

// `sums += left · right`: 16 × 8 sums of 16 terms. The left side is four matrices (rows 0-7 and 8-15 of its first 8
// terms, then of the others), the right side two, transposed (its first 8 terms, then the others), the sums two.
template <class T> DEVICE void multiply(float (&sums)[4], const u32 (&left)[4], u32 right0, u32 right1) {
    struct Sides { u32 left[4], right[2]; };
    const Sides own = {{left[0], left[1], left[2], left[3]}, {right0, right1}};
    const auto half = [](u32 pair, u32 which) { return widen(T{(u16)(pair >> 16 * which)}); };
    host::of_warp(own, [&](auto of) {
        for (u32 i = 0; i < 4; i++) {
            const u32 row = threadIdx.x % 32 / 4, column = 2 * (threadIdx.x % 4) + i % 2;
            float sum = sums[i];
            for (u32 term = 0; term < 16; term++) {
                const u32 pair = term % 8 / 2, later = term / 8;
                sum += half(of(4 * row + pair).left[i / 2 + 2 * later], term % 2)
                    * half(of(4 * column + pair).right[later], term % 2);
            }
            sums[i] = sum;
        }
        return 0;
    });
}

// Copies 16 bytes to shared memory, or zeros; they are there when the thread has waited.
DEVICE void copy(void* to, const void* from, bool there) { host::copy_later(to, there ? from : nullptr, 16); }
DEVICE void wait_for_copies() { host::wait_for_copies(); }

// Closes a group of copies: those that the thread has started since it closed the last group.
DEVICE void close_copies() { host::close_copies(); }

// Waits for all groups of the thread's copies but the last `N` that it closed.
template <int N> DEVICE void wait_for_copies_but() { host::wait_for_copies_but(N); }

#else

typedef u32 Place;
DEVICE Place place_of(const void* pointer) { return (u32)__cvta_generic_to_shared(pointer); }

template <class T> DEVICE u32 pair(float first, float second);
template <> __device__ __forceinline__ u32 pair<f16>(float first, float second) {
    u32 both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
    return both;
}
template <> __device__ __forceinline__ u32 pair<bf16>(float first, float second) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
    return both;
}

DEVICE float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

DEVICE void load(u32 (&to)[4], Place row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(row)
                 : "memory");
}

DEVICE void load_transposed(u32 (&to)[4], Place row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(row)
                 : "memory");
}

#define MULTIPLY(type)                                                                                    \
    asm("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, " \
        "{%8, %9}, {%0, %1, %2, %3};"                                                                     \
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])                                      \
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right0), "r"(right1))

template <class T> DEVICE void multiply(float (&sums)[4], const u32 (&left)[4], u32 right0, u32 right1);
template <> __device__ __forceinline__ void multiply<f16>(float (&sums)[4], const u32 (&left)[4], u32 right0, u32 right1) {
    MULTIPLY("f16");
}
template <> __device__ __forceinline__ void multiply<bf16>(float (&sums)[4], const u32 (&left)[4], u32 right0, u32 right1) {
    MULTIPLY("bf16");
}

DEVICE void copy(void* to, const void* from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(place_of(to)), "l"(from), "r"(there ? 16 : 0)
                 : "memory");
}
DEVICE void wait_for_copies() { asm volatile("cp.async.wait_all;" : : : "memory"); }
DEVICE void close_copies() { asm volatile("cp.async.commit_group;" : : : "memory"); }
template <int N> DEVICE void wait_for_copies_but() { asm volatile("cp.async.wait_group %0;" : : "n"(N) : "memory"); }

#endif

// Shared memory for matrices.
struct alignas(256) Room { u16 at[128]; };

// Matrices in shared memory of `Columns` columns, a multiple of 8. Products need a multiple of 16: zeros fill the last
// group of eight elements. A matrix is aligned to 128 bytes.
//
// A warp reads the same group of eight rows at once, without bank conflicts: rows of a multiple of 64 elements are
// swizzled by the number of the row, and the stride of other rows is an odd number of groups.
template <class T, int Columns> struct Matrix {
    static constexpr int COLUMNS = Columns, WIDTH = (Columns + 15) / 16 * 16, GROUPS = WIDTH / 8;
    static constexpr bool SWIZZLED = WIDTH % 64 == 0;
    // Elements from a row to the next.
    static constexpr int STRIDE = SWIZZLED ? WIDTH : (GROUPS | 1) * 8;

    DEVICE int place(int row, int group) { return row * STRIDE + (SWIZZLED ? group ^ (row & 7) : group) * 8; }

    // Starts to copy the first `rows` of `ROWS` rows; the others become zeros. A thread copies the same group of
    // several rows: it computes one address.
    template <int ROWS, int THREADS> DEVICE void fill(T* matrix, const T* from, i64 step, int rows) {
        constexpr int LANES = GROUPS <= 2 ? 2 : GROUPS <= 4 ? 4 : GROUPS <= 8 ? 8 : GROUPS <= 16 ? 16 : 32;
        constexpr int AT_ONCE = THREADS / LANES;
        const int first = (int)threadIdx.x / LANES, group = (int)threadIdx.x % LANES;
        if (GROUPS < LANES && group >= GROUPS) return;
        #pragma unroll
        for (int i = 0; i < (ROWS + AT_ONCE - 1) / AT_ONCE; i++) {
            const int row = i * AT_ONCE + first;
            if (ROWS % AT_ONCE != 0 && row >= ROWS) continue;
            const bool there = row < rows && (COLUMNS == WIDTH || group < COLUMNS / 8);
            copy(matrix + place(row, group), there ? from + row * step + group * 8 : from, there);
        }
    }

    // The place of a thread's own group, 0 or 1, moved by so many rows, a multiple of 8, and so many columns, a
    // multiple of 16. In swizzled rows an exclusive or moves within 64 columns, and an addition moves by 64.
    DEVICE Place moved(const T* matrix, int own_row, int own_group, int row, int column) {
        const Place own = place_of(matrix + place(own_row, own_group));
        if (!SWIZZLED) return own + (row * STRIDE + column) * 2;
        return (own ^ (Place)(column % 64 * 2)) + (row * STRIDE + column / 64 * 64) * 2;
    }

    // 16 rows and 16 columns as a left side.
    DEVICE void left(u32 (&to)[4], const T* matrix, int row, int column) {
        const int lane = (int)threadIdx.x % 32;
        load(to, moved(matrix, lane % 16, lane / 16, row, column));
    }

    // The same, of rows in a device's memory, of which as many are there.
    DEVICE void left_of_rows(u32 (&to)[4], const T* from, i64 step, int rows, int column) {
        const int row = (int)threadIdx.x % 32 / 4, first = column + 2 * ((int)threadIdx.x % 4);
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            const int own = row + i % 2 * 8;
            const bool there = own < rows && (COLUMNS == WIDTH || column + i / 2 * 8 < COLUMNS);
            to[i] = there ? *(const u32*)(from + own * step + first + i / 2 * 8) : 0;
        }
    }

    // Two right sides whose columns are 16 rows, and whose terms 16 columns.
    DEVICE void rows_as_columns(u32 (&to)[4], const T* matrix, int row, int column) {
        const int lane = (int)threadIdx.x % 32;
        load(to, moved(matrix, lane % 8 + lane / 16 * 8, lane / 8 % 2, row, column));
    }

    // Two right sides whose terms are 16 rows.
    DEVICE void rows_as_terms(u32 (&to)[4], const T* matrix, int row, int column) {
        const int lane = (int)threadIdx.x % 32;
        load_transposed(to, moved(matrix, lane % 16, lane / 16, row, column));
    }

    // 16 columns of sums as a left side.
    DEVICE void left_of_sums(u32 (&to)[4], const float (&first)[4], const float (&second)[4]) {
        to[0] = pair<T>(first[0], first[1]), to[1] = pair<T>(first[2], first[3]);
        to[2] = pair<T>(second[0], second[1]), to[3] = pair<T>(second[2], second[3]);
    }

    // 16 rows of sums become rows of a result, of which as many are there, through shared memory that is the warp's.
    DEVICE void put(T* matrix, const float (&sums)[GROUPS][4], float upper, float lower, T* to, i64 step, int rows) {
        const int lane = (int)threadIdx.x % 32;
        #pragma unroll
        for (int i = 0; i < GROUPS; i++) {
            *(u32*)(matrix + place(lane / 4, i) + 2 * (lane % 4)) = pair<T>(sums[i][0] * upper, sums[i][1] * upper);
            *(u32*)(matrix + place(lane / 4 + 8, i) + 2 * (lane % 4)) = pair<T>(sums[i][2] * lower, sums[i][3] * lower);
        }
        __syncwarp();
        constexpr int OWN = COLUMNS / 8;
        #pragma unroll
        for (int i = 0; i < (16 * OWN + 31) / 32; i++) {
            const int at = i * 32 + lane, row = at / OWN, group = at % OWN;
            const bool there = row < rows && (16 * OWN % 32 == 0 || row < 16);
            if (there) store(to + row * step + group * 8, ::load<8>(matrix + place(row, group)));
        }
    }
};

}  // namespace mma
