# Numbers in wire order, most significant byte first; for every compiled module.

cdef inline uint32_t be32(const uint8_t *p) noexcept nogil:
    return (<uint32_t> p[0] << 24) | (<uint32_t> p[1] << 16) | (<uint32_t> p[2] << 8) | p[3]


cdef inline int64_t be64(const uint8_t *p) noexcept nogil:
    return <int64_t> ((<uint64_t> be32(p) << 32) | be32(p + 4))


cdef inline int16_t be16(const uint8_t *p) noexcept nogil:
    return <int16_t> ((<uint32_t> p[0] << 8) | p[1])


cdef inline void put32(uint8_t *p, uint32_t value) noexcept nogil:
    p[0] = <uint8_t> (value >> 24)
    p[1] = <uint8_t> (value >> 16)
    p[2] = <uint8_t> (value >> 8)
    p[3] = <uint8_t> value


cdef inline void put64(uint8_t *p, uint64_t value) noexcept nogil:
    put32(p, <uint32_t> (value >> 32))
    put32(p + 4, <uint32_t> value)
