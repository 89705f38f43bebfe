//! What `nonet setup` adds to servers.toml besides servers.

use super::{HostFault, ImportPlan, servers::ServersToml};

/// Settings that a setup adds if servers.toml says nothing about them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Defaults {
    /// Asks the user before tools of high risk: `[policies.careful]`.
    pub ask_by_risk: bool,
    /// Lets all clients share one gateway: `shared` of `[gateway]`.
    pub shared: bool,
}

impl ImportPlan {
    /// Returns the settings that the new servers.toml says nothing about.
    pub fn missing_defaults(&self) -> Result<Defaults, HostFault> {
        let doc = ServersToml::new(self.change.after.clone(), &self.change.file)?;
        Ok(Defaults { ask_by_risk: !doc.has_policy_for_risk(), shared: !doc.has_shared() })
    }

    /// Adds settings to the new servers.toml.
    pub fn add_defaults(&mut self, wanted: Defaults) -> Result<(), HostFault> {
        if wanted == Defaults::default() {
            return Ok(());
        }
        let mut doc = ServersToml::new(self.change.after.clone(), &self.change.file)?;
        if wanted.ask_by_risk {
            doc.ask_by_risk();
        }
        if wanted.shared {
            doc.share();
        }
        let after = doc.text.with(&doc.edited_text()?);
        self.change.after = Some(after);
        Ok(())
    }
}
