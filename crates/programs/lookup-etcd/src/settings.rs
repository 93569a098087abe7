//! What an overlay's properties say of the registry.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use serde_json::Value;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};
use windlass_lookup::protocol::{PORT, Property, PropertyType};

use crate::schema::{self, HostRecord};

/// Endpoints of the registry.
const ENDPOINTS_MAX: usize = 16;

/// The registry, and who this host is in it. Overlays of one process have the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Members of etcd: `http://` or `https://`, name or address, port.
    pub endpoints: Vec<String>,
    /// Name of the cluster.
    pub cluster: String,
    /// Name of this host.
    pub host: String,
    /// This host's tunnel address and port.
    pub record: HostRecord,
    /// PEM file of the authority that signed the members' certificates.
    ca: Option<PathBuf>,
    /// PEM files of this host's certificate and key.
    identity: Option<(PathBuf, PathBuf)>,
    /// User, and the file that holds its password.
    user: Option<(String, PathBuf)>,
    /// Directory of the copy on disk.
    pub cache: PathBuf,
}

/// Each property: name, type, default, whether it is required.
const PROPERTIES: &[(&str, PropertyType, Option<&str>, bool)] = &[
    ("etcd/endpoints", PropertyType::String, None, true),
    ("etcd/cluster", PropertyType::String, Some("default"), false),
    ("etcd/host", PropertyType::String, None, false),
    ("etcd/ca", PropertyType::String, None, false),
    ("etcd/cert", PropertyType::String, None, false),
    ("etcd/key", PropertyType::String, None, false),
    ("etcd/user", PropertyType::String, None, false),
    ("etcd/password-file", PropertyType::String, None, false),
    (
        "etcd/cache",
        PropertyType::String,
        Some("/var/lib/windlass-lookup"),
        false,
    ),
    ("vxlan/listen-ip", PropertyType::Ip, None, true),
    ("vxlan/listen-port", PropertyType::Uint, None, false),
];

/// The properties, as the first line tells them.
#[must_use]
pub fn properties() -> Vec<Property> {
    let property =
        |(name, kind, default, required): &(&str, PropertyType, Option<&str>, bool)| Property {
            name: (*name).to_owned(),
            kind: *kind,
            default: default.map(Value::from),
            required: *required,
        };
    PROPERTIES.iter().map(property).collect()
}

fn text(of: &BTreeMap<String, Value>, name: &str) -> Result<Option<String>, String> {
    match of.get(name) {
        Some(Value::String(text)) if !text.is_empty() => Ok(Some(text.clone())),
        None | Some(Value::Null) => {
            let row = PROPERTIES.iter().find(|row| row.0 == name);
            Ok(row.and_then(|row| row.2).map(str::to_owned))
        }
        Some(other) => Err(format!("{name}: {other} is no text")),
    }
}

fn name(
    of: &BTreeMap<String, Value>,
    key: &str,
    default: Option<String>,
) -> Result<String, String> {
    let text = text(of, key)?.or(default);
    let text = text.ok_or_else(|| format!("{key} is required"))?;
    match schema::is_name(&text) {
        true => Ok(text),
        false => Err(format!(
            "{key}: \"{text}\" is no name (1 to {} letters, digits, '.', '_', '-')",
            schema::NAME_BYTES_MAX
        )),
    }
}

fn record(of: &BTreeMap<String, Value>) -> Result<HostRecord, String> {
    let ip = text(of, "vxlan/listen-ip")?.ok_or("vxlan/listen-ip is required")?;
    let vtep: IpAddr = ip
        .parse()
        .map_err(|_| format!("vxlan/listen-ip: \"{ip}\" is no address"))?;
    if vtep.is_unspecified() || vtep.is_multicast() {
        return Err(format!(
            "vxlan/listen-ip: other hosts cannot send to {vtep}"
        ));
    }
    let port = match of.get("vxlan/listen-port") {
        None | Some(Value::Null) => PORT,
        Some(value) => {
            let port = value.as_u64().and_then(|port| u16::try_from(port).ok());
            port.filter(|port| *port != 0)
                .ok_or_else(|| format!("vxlan/listen-port: {value} is no port"))?
        }
    };
    Ok(HostRecord {
        vtep: vec![vtep],
        port,
    })
}

impl Settings {
    /// Reads properties, and whatever they name, once.
    ///
    /// # Errors
    /// A sentence that names the property.
    pub fn of(properties: &BTreeMap<String, Value>) -> Result<Self, String> {
        let list = text(properties, "etcd/endpoints")?.ok_or("etcd/endpoints is required")?;
        let path = |name| text(properties, name).map(|text| text.map(PathBuf::from));
        let identity = match (path("etcd/cert")?, path("etcd/key")?) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            _ => return Err("etcd/cert and etcd/key go together".to_owned()),
        };
        let user = match (text(properties, "etcd/user")?, path("etcd/password-file")?) {
            (Some(user), Some(file)) => Some((user, file)),
            (None, None) => None,
            _ => return Err("etcd/user and etcd/password-file go together".to_owned()),
        };
        let own_name = rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned();
        let settings = Self {
            endpoints: list.split(',').map(|one| one.trim().to_owned()).collect(),
            cluster: name(properties, "etcd/cluster", None)?,
            host: name(properties, "etcd/host", Some(own_name))?,
            record: record(properties)?,
            ca: path("etcd/ca")?,
            identity,
            user,
            cache: path("etcd/cache")?.unwrap_or_default(),
        };
        if settings.endpoints.len() > ENDPOINTS_MAX {
            return Err(format!("etcd/endpoints: more than {ENDPOINTS_MAX}"));
        }
        for at in 0..settings.endpoints.len() {
            settings.endpoint(at)?;
        }
        settings.login()?;
        Ok(settings)
    }

    /// One of the members, with certificates as they are on disk now.
    ///
    /// # Errors
    /// A sentence.
    pub fn endpoint(&self, at: usize) -> Result<Endpoint, String> {
        let url = &self.endpoints[at % self.endpoints.len()];
        let bad = |error: &dyn std::fmt::Display| format!("etcd/endpoints: \"{url}\": {error}");
        let is_tls = url.starts_with("https://");
        if !is_tls && !url.starts_with("http://") {
            return Err(bad(&"begins with neither http:// nor https://"));
        }
        let endpoint = Endpoint::from_shared(url.clone()).map_err(|error| bad(&error))?;
        if endpoint.uri().port().is_none() {
            return Err(bad(&"names no port"));
        }
        if !is_tls {
            return Ok(endpoint);
        }
        let read = |path: &PathBuf| {
            std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
        };
        let Some(ca) = &self.ca else {
            return Err("etcd/ca is required with https://".to_owned());
        };
        let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(ca)?));
        if let Some((cert, key)) = &self.identity {
            tls = tls.identity(Identity::from_pem(read(cert)?, read(key)?));
        }
        endpoint.tls_config(tls).map_err(|error| bad(&error))
    }

    /// User and password, as they are on disk now.
    ///
    /// # Errors
    /// A sentence.
    pub fn login(&self) -> Result<Option<(String, String)>, String> {
        let Some((user, file)) = &self.user else {
            return Ok(None);
        };
        let password = std::fs::read_to_string(file);
        let password = password.map_err(|error| format!("{}: {error}", file.display()))?;
        let password = password.trim_end_matches(['\r', '\n']).to_owned();
        Ok(Some((user.clone(), password)))
    }

    /// Whether what is told to etcd can be read, and written, under way.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.endpoints.iter().any(|url| url.starts_with("http://"))
    }
}
