//! `apply` and `export`: the whole configuration at once.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use windlass_api::{Document, ErrorCode};

use crate::Session;
use crate::failure::Failure;
use crate::options::ApplyArgs;

/// Bytes of a document at most: what the daemon can be told to accept.
const DOCUMENT_BYTES_MAX: u64 = 64 << 20;

/// `windlass apply FILE`
pub(crate) fn apply(session: &mut Session<'_>, args: &ApplyArgs) -> Result<(), Failure> {
    let what = format!("apply {}", args.file.display());
    let text = read(&args.file).map_err(|error| {
        let code = match error.kind() {
            io::ErrorKind::PermissionDenied => ErrorCode::Forbidden,
            _ => ErrorCode::Invalid,
        };
        Failure::new(
            code,
            &*what,
            error.to_string(),
            "name a file that can be read, - for stdin",
        )
    })?;
    let document: Document = serde_json::from_slice(&text).map_err(|error| {
        let todo = "correct it, windlass-document(5) describes it, nothing was changed";
        Failure::new(ErrorCode::Malformed, &*what, error.to_string(), todo)
    })?;
    let applied = session.client(&what)?.apply(&document, args.dry_run, None);
    session.applied(&applied.map_err(|error| Failure::of(&*what, error))?, true)
}

fn read(file: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    if file == Path::new("-") {
        io::stdin()
            .lock()
            .take(DOCUMENT_BYTES_MAX + 1)
            .read_to_end(&mut text)?;
    } else {
        File::open(file)?
            .take(DOCUMENT_BYTES_MAX + 1)
            .read_to_end(&mut text)?;
    }
    if text.len() as u64 > DOCUMENT_BYTES_MAX {
        return Err(io::Error::other(format!(
            "it is larger than {DOCUMENT_BYTES_MAX} bytes"
        )));
    }
    Ok(text)
}

/// `windlass export`
pub(crate) fn export(session: &mut Session<'_>) -> Result<(), Failure> {
    let document = session.client("export")?.document();
    let (mut document, _) = document.map_err(|error| Failure::of("export", error))?;
    document.canonicalize();
    serde_json::to_writer_pretty(&mut *session.out, &document).map_err(io::Error::from)?;
    writeln!(session.out)?;
    Ok(())
}
