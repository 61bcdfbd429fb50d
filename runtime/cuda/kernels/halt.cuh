// A device that halts by itself: of two words the first says whether it may, the second that it has.

DEVICE bool is_finite(double x) { return x - x == 0; }

// Halts where a number is not finite.
template <class T> DEVICE void watch(const T* number, u32* halt) {
    if (threadIdx.x == 0 && halt[0] && !is_finite((double)widen(*number))) halt[1] = 1;
}

// Halts where a bool is true.
DEVICE void watch(const u8* flag, u32* halt) {
    if (threadIdx.x == 0 && halt[0] && *flag) halt[1] = 1;
}
