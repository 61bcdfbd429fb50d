// Products of small matrices, by a warp at once: tensor cores, and what brings matrices to them.
//
// A matrix of 8 rows of 8 elements is spread over a warp: thread `l` has the elements `2 (l % 4)` and one more of row `l / 4`.

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

// Four matrices: thread `8 i + j` says where row `j` of matrix `i` begins.
DEVICE void load(u32 (&to)[4], Place row) {
    const u32 lane = threadIdx.x % 32;
    host::of_warp((const u16*)row, [&](auto of) {
        for (u32 i = 0; i < 4; i++) memcpy(&to[i], of(8 * i + lane / 4) + 2 * (lane % 4), 4);
        return 0;
    });
}

// The same, of the transposed matrices.
DEVICE void load_transposed(u32 (&to)[4], Place row) {
    const u32 lane = threadIdx.x % 32, column = lane / 4, first = 2 * (lane % 4);
    host::of_warp((const u16*)row, [&](auto of) {
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

#endif

// Shared memory for matrices.
struct alignas(256) Room { u16 at[128]; };

// Matrices of `Width` columns in shared memory, each aligned to its rows; groups of eight elements change places so that
// threads meet in no bank.
template <class T, int Width> struct Matrix {
    static constexpr int WIDTH = Width, GROUPS = Width / 8;

    DEVICE int place(int row, int group) { return row * WIDTH + ((group ^ (row & 7)) * 8); }

    // Starts to copy `ROWS` rows, of which as many are there; zeros for the others.
    template <int ROWS, int THREADS> DEVICE void fill(T* matrix, const T* from, i64 step, int rows) {
        #pragma unroll
        for (int i = 0; i < ROWS * GROUPS / THREADS; i++) {
            const int at = i * THREADS + (int)threadIdx.x, row = at / GROUPS, group = at % GROUPS;
            const bool there = row < rows;
            copy(matrix + place(row, group), there ? from + row * step + group * 8 : from, there);
        }
    }

    // The place of a group of a thread's own among those of a matrix, moved by so many rows and columns: multiples of 8 and
    // of 16.
    DEVICE Place moved(const T* matrix, int own_row, int own_group, int row, int column) {
        return (place_of(matrix + place(own_row, own_group)) + row * WIDTH * 2) ^ (Place)(column * 2);
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
            to[i] = own < rows ? *(const u32*)(from + own * step + first + i / 2 * 8) : 0;
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
        #pragma unroll
        for (int i = 0; i < 16 * GROUPS / 32; i++) {
            const int at = i * 32 + lane, row = at / GROUPS, group = at % GROUPS;
            if (row < rows) store(to + row * step + group * 8, ::load<8>(matrix + place(row, group)));
        }
    }
};

}  // namespace mma
