// Bools in the bits of bytes, and back. A thread has a byte: the next 8 bools of a row of `BOOLS`.

namespace packing {

// The first bool of a byte, and the number of its bools: fewer at the end of a row.
template <i64 BOOLS> struct Byte {
    static constexpr i64 bytes = (BOOLS + 7) / 8;
    i64 first;
    int count;
    DEVICE Byte of(i64 byte) {
        const i64 at = byte % bytes * 8, left = BOOLS - at;
        return Byte{byte / bytes * BOOLS + at, left < 8 ? (int)left : 8};
    }
};

template <i64 BYTES, i64 BOOLS> DEVICE void pack(const u8* x, u8* out) {
    const i64 byte = thread_index();
    if (byte >= BYTES) return;
    const auto own = Byte<BOOLS>::of(byte);
    u32 bits = 0;
    #pragma unroll
    for (int k = 0; k < 8; k++) {
        if (k < own.count) bits |= (u32)x[own.first + k] << k;
    }
    out[byte] = (u8)bits;
}

template <i64 BYTES, i64 BOOLS> DEVICE void unpack(const u8* x, u8* out) {
    const i64 byte = thread_index();
    if (byte >= BYTES) return;
    const auto own = Byte<BOOLS>::of(byte);
    const u32 bits = x[byte];
    #pragma unroll
    for (int k = 0; k < 8; k++) {
        if (k < own.count) out[own.first + k] = (u8)(bits >> k & 1);
    }
}

}  // namespace packing
