//! The result of an ADD, in the form of each version.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::config::Route;
use crate::failure::{Code, Failure};
use crate::ranges::Net;

/// An address that was given.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Ip {
    /// It, with the prefix of its network.
    pub address: Net,
    /// The next hop there.
    #[serde(default)]
    pub gateway: Option<IpAddr>,
}

/// Addresses and routes: what a plugin for addresses gives, and what this one passes on.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct Given {
    /// Addresses.
    #[serde(default)]
    pub ips: Vec<Ip>,
    /// Routes.
    #[serde(default)]
    pub routes: Vec<Route>,
    /// What the container's resolver is told.
    #[serde(default)]
    pub dns: Option<Value>,
}

/// An interface of a result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its MAC address.
    #[serde(default)]
    pub mac: String,
    /// Its MTU in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// The path of its namespace.
    #[serde(default)]
    pub sandbox: String,
}

/// What is read of the result of an ADD for CHECK.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Previous {
    /// Interfaces.
    #[serde(default)]
    pub interfaces: Vec<Interface>,
    /// Addresses and routes.
    #[serde(flatten)]
    pub given: Given,
}

impl Given {
    /// What another plugin has printed.
    ///
    /// # Errors
    /// [`Code::Decode`].
    pub fn read(plugin: &str, value: Value) -> Result<Self, Failure> {
        let read = serde_json::from_value(value);
        let mut given: Self = read.map_err(|error| {
            let why = format!("the result of {plugin}: {error}");
            Failure::new(Code::Decode, why)
        })?;
        given.fill_gateways();
        Ok(given)
    }

    /// Routes without a next hop go to the one of an address of their family.
    pub fn fill_gateways(&mut self) {
        for route in &mut self.routes {
            let is_like = |ip: &IpAddr| ip.is_ipv4() == route.dst.ip.is_ipv4();
            let gateways = self.ips.iter().filter_map(|ip| ip.gateway);
            route.gw = route.gw.or_else(|| gateways.clone().find(is_like));
        }
    }

    /// The result for an interface.
    pub fn result(&self, version: &str, interface: &Interface) -> Value {
        let mut interface = interface.clone();
        if version != "1.1.0" {
            interface.mtu = None;
        }
        let has_family = version.starts_with("0.");
        let ips: Vec<Value> = (self.ips.iter())
            .map(|ip| {
                let mut json = json!({"address": ip.address, "interface": 0});
                if let Some(object) = json.as_object_mut() {
                    if let Some(gateway) = ip.gateway {
                        object.insert("gateway".into(), json!(gateway));
                    }
                    if has_family {
                        let family = if ip.address.ip.is_ipv4() { "4" } else { "6" };
                        object.insert("version".into(), json!(family));
                    }
                }
                json
            })
            .collect();
        json!({
            "cniVersion": version,
            "interfaces": [interface],
            "ips": ips,
            "routes": self.routes,
            "dns": self.dns.clone().unwrap_or_else(|| json!({})),
        })
    }
}
