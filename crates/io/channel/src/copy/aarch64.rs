//! aarch64: a routine as C has it.

pub(super) use super::windlass_channel_copy as call;

routine! {
    // x0 destination, x1 source, x2 bytes; x6: the destination, x0: bytes certainly copied, x3: the others.
    "mov x6, x0",
    "mov x0, #0",
    "2:",
    "sub x3, x2, x0",
    "cmp x3, #64",
    "b.lo 3f",
    "add x4, x1, x0",
    "add x5, x6, x0",
    "prfm pldl1keep, [x4, #1024]",
    "ldp q0, q1, [x4]",
    "ldp q2, q3, [x4, #32]",
    "stp q0, q1, [x5]",
    "stp q2, q3, [x5, #32]",
    "add x0, x0, #64",
    "b 2b",
    "3:",
    "cmp x3, #16",
    "b.lo 4f",
    "ldr q0, [x1, x0]",
    "str q0, [x6, x0]",
    "add x0, x0, #16",
    "sub x3, x3, #16",
    "b 3b",
    "4:",
    "cbz x3, windlass_channel_copy_fixup",
    "ldrb w4, [x1, x0]",
    "strb w4, [x6, x0]",
    "add x0, x0, #1",
    "sub x3, x3, #1",
    "b 4b",
}
