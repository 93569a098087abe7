//! Numbers and texts in bytes that nobody vouches for.

/// The byte at a place.
pub(crate) fn byte(bytes: &[u8], at: usize) -> Option<u8> {
    bytes.get(at).copied()
}

/// The two bytes at a place.
pub(crate) fn half(bytes: &[u8], at: usize) -> Option<u16> {
    let found = bytes.get(at..)?.first_chunk()?;
    Some(u16::from_le_bytes(*found))
}

/// The four bytes at a place.
pub(crate) fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let found = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_le_bytes(*found))
}

/// So many bytes at a place.
pub(crate) fn part(bytes: &[u8], at: u32, len: u32) -> Option<&[u8]> {
    let at = usize::try_from(at).ok()?;
    let end = at.checked_add(usize::try_from(len).ok()?)?;
    bytes.get(at..end)
}

/// The text that begins at a place and ends at a zero; `None` if it is empty.
pub(crate) fn text(bytes: &[u8], at: u32) -> Option<&str> {
    let rest = bytes.get(usize::try_from(at).ok()?..)?;
    let len = rest.iter().position(|byte| *byte == 0)?;
    let text = std::str::from_utf8(rest.get(..len)?).ok()?;
    (!text.is_empty()).then_some(text)
}
