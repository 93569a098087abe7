//! The machine code of a function: where a probe costs least, and where the function returns.
//!
//! A breakpoint of the kernel's on `nop`, `push`, `call`, `jmp` and conditional jumps is emulated; everything else is executed aside, one step of the
//! processor, which costs about twenty times as much (`arch/x86/kernel/uprobes.c`).

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic,
    OpAccess, OpKind, Register,
};

/// Instructions of a function that are looked at.
pub const INSTRUCTIONS_MAX: usize = 1 << 16;

/// Where a probe on a function's entry is put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spot {
    /// The address of the instruction.
    pub address: u64,
    /// The kernel emulates it.
    pub is_emulated: bool,
    /// It leaves the function by a jump to another one.
    pub leaves_by_jump: bool,
}

/// Whether the kernel emulates an instruction, given its bytes.
fn is_emulated(instruction: &Instruction, bytes: &[u8]) -> bool {
    match bytes {
        // push, also of r8 to r15
        [0x50..=0x57] | [0x41, 0x50..=0x57] => true,
        [0x90] => true,
        // Without prefixes: call, jmp, and conditional jumps, near and short.
        [0xe8 | 0xe9, ..] => instruction.len() == 5,
        [0xeb | 0x70..=0x7f, _] => true,
        [0x0f, 0x80..=0x8f, ..] => instruction.len() == 6,
        _ => false,
    }
}

/// The instructions of a function; `None` if its bytes are not code to their end.
fn decoded(code: &[u8], address: u64) -> Option<Vec<Instruction>> {
    let mut decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
    let mut all = Vec::new();
    while decoder.can_decode() {
        let instruction = decoder.decode();
        if instruction.is_invalid() || all.len() == INSTRUCTIONS_MAX {
            return None;
        }
        all.push(instruction);
    }
    Some(all)
}

/// Where a jump goes that says so itself.
fn target(instruction: &Instruction) -> Option<u64> {
    let is_near = matches!(
        instruction.op0_kind(),
        OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64
    );
    let jumps = matches!(
        instruction.flow_control(),
        FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch
    );
    (is_near && jumps).then(|| instruction.near_branch_target())
}

/// Whether an instruction may change memory that is not the function's own frame: what a probe reads behind it is not what the function was called
/// with. `has_frame`: rbp is of the frame.
fn changes(
    instruction: &Instruction,
    factory: &mut InstructionInfoFactory,
    has_frame: bool,
) -> bool {
    let info = factory.info(instruction);
    info.used_memory().iter().any(|used| {
        let is_read = matches!(
            used.access(),
            OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess
        );
        let base = used.base();
        let is_own = base == Register::RSP || (has_frame && base == Register::RBP);
        !is_read && !is_own
    })
}

/// The cheapest instruction that is executed exactly once each time that a function is entered at its first one, and at which `may_be` says that what a
/// probe needs can be had. Nothing before it changes memory but the function's frame. Without any, the first one.
pub fn entry(code: &[u8], address: u64, may_be: impl Fn(u64) -> bool) -> Spot {
    let bytes = |instruction: &Instruction| {
        let start = usize::try_from(instruction.ip().wrapping_sub(address)).unwrap_or(usize::MAX);
        let end = start.saturating_add(instruction.len());
        code.get(start..end).unwrap_or_default()
    };
    let spot = |address, is_emulated| Spot {
        address,
        is_emulated,
        leaves_by_jump: false,
    };
    // The first one is right also where the rest is not understood.
    let one = Decoder::with_ip(64, code, address, DecoderOptions::NONE).decode();
    let first = spot(address, is_emulated(&one, bytes(&one)));
    if first.is_emulated && may_be(address) {
        return first;
    }
    // A jump that goes where nobody sees may go there.
    let is_blind = |instruction: &Instruction| {
        matches!(instruction.flow_control(), FlowControl::IndirectBranch)
    };
    let Some(all) = decoded(code, address).filter(|all| !all.iter().any(is_blind)) else {
        return first;
    };
    let targets: Vec<u64> = all.iter().filter_map(target).collect();
    let (mut right, mut has_frame) = (None, false);
    let mut factory = InstructionInfoFactory::new();
    for instruction in &all {
        let ip = instruction.ip();
        if targets.iter().any(|to| *to > address && *to <= ip) {
            break;
        }
        if may_be(ip) {
            if is_emulated(instruction, bytes(instruction)) {
                return spot(ip, true);
            }
            right.get_or_insert(spot(ip, false));
        }
        let goes_on = instruction.flow_control() == FlowControl::Next;
        if !goes_on || changes(instruction, &mut factory, has_frame) {
            break;
        }
        // mov rbp, rsp
        has_frame |= instruction.mnemonic() == Mnemonic::Mov
            && instruction.op0_register() == Register::RBP
            && instruction.op1_register() == Register::RSP;
    }
    right.unwrap_or(first)
}

/// Whether an instruction begins at `pc`, in code of which one begins at `address`. A probe in the middle of one would destroy it.
pub fn is_start(code: &[u8], address: u64, pc: u64) -> bool {
    let mut decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
    for _ in 0..INSTRUCTIONS_MAX {
        if decoder.ip() >= pc || !decoder.can_decode() || decoder.decode().is_invalid() {
            break;
        }
    }
    decoder.ip() == pc && decoder.can_decode() && !decoder.decode().is_invalid()
}

/// Where a part of a function is left: its returns, and its jumps to other functions; `is_own` says what is the function's. `None` if the code is not
/// understood to its end, or jumps where nobody sees.
pub fn returns(code: &[u8], address: u64, is_own: impl Fn(u64) -> bool) -> Option<Vec<Spot>> {
    let all = decoded(code, address)?;
    let leaves_by = |instruction| target(instruction).is_some_and(|to| !is_own(to));
    let mut spots = Vec::new();
    for instruction in &all {
        let leaves = match instruction.flow_control() {
            FlowControl::Return => true,
            FlowControl::UnconditionalBranch => leaves_by(instruction),
            // As rare as it is: it may not be taken.
            FlowControl::ConditionalBranch if leaves_by(instruction) => return None,
            FlowControl::IndirectBranch => {
                // A switch reads its table, a tail call its register.
                if instruction.mnemonic() == Mnemonic::Jmp && instruction.code() == Code::Jmp_rm64 {
                    return None;
                }
                false
            }
            _ => false,
        };
        if leaves {
            let address = instruction.ip();
            let leaves_by_jump = instruction.flow_control() != FlowControl::Return;
            spots.push(Spot {
                address,
                is_emulated: leaves_by_jump,
                leaves_by_jump,
            });
        }
    }
    Some(spots)
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: u64 = 0x1000;

    fn spot(code: &[u8]) -> (u64, bool) {
        let spot = entry(code, AT, |_| true);
        (spot.address - AT, spot.is_emulated)
    }

    #[test]
    fn a_probe_goes_where_it_is_emulated() {
        // push rbp; mov rbp, rsp; ret
        assert_eq!(spot(&[0x55, 0x48, 0x89, 0xe5, 0xc3]), (0, true));
        // endbr64; push rbp; ret
        assert_eq!(spot(&[0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0xc3]), (4, true));
        // sub rsp, 8; push r12
        assert_eq!(spot(&[0x48, 0x83, 0xec, 8, 0x41, 0x54, 0xc3]), (4, true));
        // mov eax, 1; ret
        assert_eq!(spot(&[0xb8, 1, 0, 0, 0, 0xc3]), (0, false));
        // mov eax, edi; push rbx; dec eax; jne to the push: it is executed more than once.
        let looping = [0x89, 0xf8, 0x53, 0xff, 0xc8, 0x75, 0xfb, 0xc3];
        assert_eq!(spot(&looping), (0, false));
        // sub rsp, 8; mov [rsp], rdi; call: the argument is there at the call.
        let stored = [
            0x48, 0x83, 0xec, 8, 0x48, 0x89, 0x3c, 0x24, 0xe8, 0, 0, 0, 0, 0xc3,
        ];
        let spot_of = |code: &[u8], first| entry(code, AT, |at| at >= AT + first);
        assert_eq!(
            spot_of(&stored, 8),
            Spot {
                address: AT + 8,
                is_emulated: true,
                leaves_by_jump: false,
            }
        );
        // The same, and a return behind it.
        let stored = [0x55, 0x48, 0x89, 0x3c, 0x24, 0x31, 0xc0, 0xc3];
        assert_eq!(
            spot_of(&stored, 5),
            Spot {
                address: AT + 5,
                is_emulated: false,
                leaves_by_jump: false,
            }
        );
        // mov [rdi], eax; push rbx: what rdi points to is another thing then.
        assert_eq!(spot(&[0x89, 0x07, 0x53, 0xc3]), (0, false));
        // mov eax, edi; push rbx; jmp rax
        assert_eq!(spot(&[0x89, 0xf8, 0x53, 0xff, 0xe0]), (0, false));
        // Not code after the first instruction.
        assert_eq!(spot(&[0x55, 0x06, 0x06]), (0, true));
        assert_eq!(spot(&[0x89, 0xf8, 0x06]), (0, false));
        // Where an argument is not to be had behind the first.
        let code = [0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0xc3];
        assert_eq!(entry(&code, AT, |at| at == AT).address, AT);
    }

    #[test]
    fn the_middle_of_an_instruction_is_none() {
        // endbr64; push rbp; mov rbp, rsp; ret
        let code = [0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0x48, 0x89, 0xe5, 0xc3];
        let starts = (0..10).filter(|at| is_start(&code, AT, AT + at));
        assert_eq!(starts.collect::<Vec<_>>(), [0, 4, 5, 8]);
        assert!(!is_start(&code, AT, AT - 1));
        assert!(!is_start(&[0x55, 0x06], AT, AT + 1));
    }

    #[test]
    fn returns_are_found() {
        let offsets = |code: &[u8]| -> Option<Vec<u64>> {
            let end = AT + code.len() as u64;
            let spots = returns(code, AT, |to| (AT..end).contains(&to))?;
            Some(spots.iter().map(|spot| spot.address - AT).collect())
        };
        // test edi, edi; je +1; ret; ret
        assert_eq!(
            offsets(&[0x85, 0xff, 0x74, 1, 0xc3, 0xc3]),
            Some(vec![4, 5])
        );
        // jmp out of the function
        assert_eq!(offsets(&[0x90, 0xe9, 0, 1, 0, 0]), Some(vec![1]));
        // jmp rax
        assert_eq!(offsets(&[0xff, 0xe0]), None);
        assert_eq!(offsets(&[0x90, 0x06]), None);
    }
}
