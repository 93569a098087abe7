//! What a program has written at a hit.

use windlass_script::ebpf::{FAULT, FIELD_HEAD, Field, NAME_BYTES, Plan, RECORD_HEAD, UNREACHED};

/// One record.
pub(super) struct Record<'r> {
    /// Nanoseconds since the machine started.
    pub(super) time: u64,
    pub(super) pid: u32,
    pub(super) tid: u32,
    /// The number of the site.
    pub(super) site: usize,
    bytes: &'r [u8],
}

/// A field of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Recorded<'r> {
    /// A number.
    Scalar(u64),
    /// The text at an address, without its end; whether it may go on.
    Text(u64, &'r [u8], bool),
    /// What lies at an address.
    Object(u64, &'r [u8]),
    /// Addresses of callers, 8 bytes each.
    Stack(&'r [u8]),
    /// A thread's name.
    Name(&'r [u8]),
    /// It could not be read there.
    Fault(u64),
    /// The hit did not come to it.
    Unreached,
}

impl<'r> Record<'r> {
    pub(super) fn of(bytes: &'r [u8]) -> Option<Self> {
        let process = word(bytes, 8)?;
        Some(Self {
            time: word(bytes, 0)?,
            pid: u32::try_from(process >> 32).ok()?,
            tid: u32::try_from(process & u64::from(u32::MAX)).ok()?,
            site: usize::try_from(word(bytes, 16)?).ok()?,
            bytes,
        })
    }

    /// The fields, as the plan of its site says.
    pub(super) fn fields(&self, plan: &Plan) -> Vec<Recorded<'r>> {
        let mut at = RECORD_HEAD;
        let fields = plan.fields.iter().map(|field| {
            let start = usize::try_from(at).ok()?;
            at = at.saturating_add(field.bytes());
            self.field(field, start)
        });
        fields
            .map(|field| field.unwrap_or(Recorded::Fault(0)))
            .collect()
    }

    fn field(&self, field: &Field, at: usize) -> Option<Recorded<'r>> {
        let (state, value) = (word(self.bytes, at)?, word(self.bytes, at + 8)?);
        if state == FAULT {
            return Some(Recorded::Fault(value));
        }
        if state == UNREACHED {
            return Some(Recorded::Unreached);
        }
        let content = self.bytes.get(at + usize::try_from(FIELD_HEAD).ok()?..)?;
        Some(match field {
            Field::Scalar(_) => Recorded::Scalar(value),
            Field::Text(_, max) => {
                let len = usize::try_from(state).ok()?.checked_sub(1)?;
                Recorded::Text(value, content.get(..len)?, state == u64::from(*max))
            }
            Field::Stack(_, depth) => {
                let most = usize::try_from(8 * depth).ok()?;
                Recorded::Stack(content.get(..usize::try_from(state).ok()?.min(most))?)
            }
            Field::Name => {
                let name = content.get(..usize::try_from(NAME_BYTES).ok()?)?;
                Recorded::Name(name.split(|byte| *byte == 0).next()?)
            }
            Field::Object(_, bytes) => {
                Recorded::Object(value, content.get(..usize::try_from(*bytes).ok()?)?)
            }
        })
    }
}

pub(super) fn word(bytes: &[u8], at: usize) -> Option<u64> {
    let word = bytes.get(at..)?.first_chunk()?;
    Some(u64::from_le_bytes(*word))
}
