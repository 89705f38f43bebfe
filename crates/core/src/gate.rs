//! The gate of an operation: its world, snapshot and profile, read once.
//!
//! All decisions on what a caller may see or call are made here.

use std::{
    collections::BTreeSet,
    sync::{Arc, LazyLock},
};

use nonet_api::{
    fault::{NextStep, Reader},
    status::ServerState,
    tools::ToolState,
};
use nonet_auth::{
    Person,
    opening::{self, Opening},
};
use nonet_config::{ApproveBy, Category, Config, Globs, Profile, Risk};
use nonet_servers::{
    catalog::{Catalog, CatalogView, EntryKind, GATEWAY, SKILLS, ServerEntry, Tool},
    downstream::Connection,
    pins::DefinitionChange,
    policy::{self, ItemKind, PolicyItem, PolicyScope, PolicyVerdict},
    prompts_resources::UriClaim,
};
use nonet_text::{
    fault::{Fault, FaultCode},
    name::{self, Spellings, meta_tool},
    results::json_len,
};
use serde_json::{Map, Value, json};

use nonet_state::{
    conditions::{ConditionInput, Conditions},
    personal::PersonLists,
    publisher::Publisher,
    servers::Servers,
    session::{Caller, Session},
    snapshot::{ProfileView, Snapshot},
    world::World,
};

/// The state that one operation of a session uses.
#[derive(Clone)]
pub struct Gate {
    /// The configuration and the connections of the moment.
    pub world: Arc<World>,
    /// The catalogue and its index of the moment.
    pub snapshot: Arc<Snapshot>,
    session: Arc<Session>,
    /// What servers list for the person, if they have accounts of their own.
    lists: Option<Arc<PersonLists>>,
    /// Where the person's connections are, if they may have any.
    servers: Option<Arc<Servers>>,
}

/// The rule of tools that always need approval.
pub(crate) const ALWAYS: &str = "always, regardless of the policies";

/// The profile of a session whose profile the configuration no longer has: it allows nothing.
static NOTHING: LazyLock<Profile> = LazyLock::new(|| Profile {
    deny: Globs::new(vec!["*".into()]).unwrap_or_default(),
    max_risk: Some(Risk::Low),
    categories: vec![String::new()],
    ..Profile::default()
});

impl Gate {
    /// Returns the connection for a caller's requests: the shared one, or the session's own if the server
    /// runs per client. Returns `None` if the server is not configured or was removed meanwhile.
    pub(crate) fn connection_for(
        &self,
        servers: &Servers,
        caller: &Caller,
        server: &Arc<str>,
    ) -> Option<Arc<Connection>> {
        let known =
            self.connection(server).filter(|connection| !connection.retired().is_cancelled()).cloned();
        // The operation's configuration may have been replaced since.
        let shared = known.or_else(|| self.of_session(&servers.world(), server))?;
        Some(servers.connection_for(shared, caller, server))
    }
}

impl Gate {
    /// Returns the world, snapshot and profile for one operation of a session. Call once per operation.
    pub fn of(publisher: &Publisher, session: &Arc<Session>) -> Self {
        let gate = Self::new(publisher.servers.world(), publisher.snapshot(), session.clone());
        let person = gate.person().filter(|_| !gate.world.personal.is_empty());
        let lists = person.and_then(|person| publisher.servers.personal.lists_of(person));
        let servers = person.map(|_| publisher.servers.clone());
        Self { lists, servers, ..gate }
    }

    /// Creates the gate of a session.
    pub fn new(world: Arc<World>, snapshot: Arc<Snapshot>, session: Arc<Session>) -> Self {
        let world = world.seen_by(session.id).map_or(world, Arc::new);
        Self { world, snapshot, session, lists: None, servers: None }
    }

    /// Returns the configuration of the operation, even if it has been replaced since.
    pub fn config(&self) -> &Arc<Config> {
        &self.world.config
    }

    /// Returns the catalogue of the operation's snapshot.
    pub fn catalog(&self) -> &Catalog {
        &self.snapshot.catalog
    }

    /// Returns the shared connection to a server.
    pub fn connection(&self, server: &str) -> Option<&Arc<Connection>> {
        self.world.connections.get(server)
    }

    /// Returns the connection to a server of another world, unless another session owns the server there.
    pub fn of_session(&self, world: &World, server: &str) -> Option<Arc<Connection>> {
        let is_open = !self.is_of_another(world.owners.get(server).copied());
        world.connections.get(server).filter(|_| is_open).cloned()
    }

    /// Returns the profile with its name and the named groups; `None` for a session without a profile.
    pub fn scope(&self) -> Option<PolicyScope<'_>> {
        let name = self.session.profile.as_deref()?;
        let config = self.config();
        let profile = config.profiles.get(name).unwrap_or_else(|| &NOTHING);
        Some(PolicyScope { name, profile, categories: &config.categories })
    }

    /// Returns the session's profile, if any.
    pub fn profile(&self) -> Option<&Profile> {
        self.scope().map(|scope| scope.profile)
    }

    /// Whether `session` is an owner other than this session.
    fn is_of_another(&self, session: Option<u64>) -> bool {
        session.is_some_and(|session| session != self.session.id)
    }

    /// Whether a server belongs to another session; this session must not see such a server.
    pub fn is_foreign(&self, server: &str) -> bool {
        let listed = self.catalog().servers().get(server).and_then(|entry| entry.session);
        self.is_of_another(listed) || self.is_of_another(self.world.owners.get(server).copied())
    }

    /// Returns the servers of the catalogue, without those of other sessions.
    pub fn servers(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<ServerEntry>)> {
        self.catalog().servers().iter().filter(|(_, entry)| !self.is_of_another(entry.session))
    }

    /// Returns a server of the catalogue, unless it belongs to another session.
    pub fn server(&self, name: &str) -> Option<&Arc<ServerEntry>> {
        self.catalog().servers().get(name).filter(|entry| !self.is_of_another(entry.session))
    }

    /// Whether a tool, or the prompt behind a skill, belongs to another session.
    pub fn hides(&self, tool: &Tool) -> bool {
        self.is_of_another(tool.session)
            || tool.of.as_ref().is_some_and(|server| self.is_foreign(server))
            || self.is_not_theirs(tool)
    }

    /// Whether a server with an account of the person's own does not list the tool for them.
    fn is_not_theirs(&self, tool: &Tool) -> bool {
        let own = self.lists.as_ref().and_then(|lists| lists.get(&tool.server));
        own.is_some_and(|own| tool.is_of_server() && !own.contains(&tool.own))
    }

    /// Checks a tool, a skill or an app against the rules and the profile. A prompt is visible to callers
    /// that see its server.
    pub fn verdict(&self, tool: &Tool) -> PolicyVerdict {
        if self.hides(tool) {
            return PolicyVerdict::Deny(match self.is_not_theirs(tool) {
                true => format!("the account of this person at `{}`", tool.server),
                false => "it belongs to another session".into(),
            });
        }
        match self.verdict_of_rules(tool) {
            PolicyVerdict::Allow if always_asks(tool) => PolicyVerdict::Approve(ALWAYS.into()),
            verdict => verdict,
        }
    }

    fn verdict_of_rules(&self, tool: &Tool) -> PolicyVerdict {
        if let Some(rule) = self.session.app.as_ref().and_then(|app| app.denies(tool)) {
            return PolicyVerdict::Deny(rule);
        }
        if let Some(rule) = self.shut_out() {
            return PolicyVerdict::Deny(rule.into());
        }
        match (policy::check(tool, self.scope()), &tool.of) {
            (PolicyVerdict::Allow, Some(server)) => self.verdict_on_prompt(server, tool.name_at_server()),
            (verdict, _) => verdict,
        }
    }

    /// Returns the key that shuts out the person for whom unattended calls are made: they would no longer get
    /// this profile. At other calls, their token was checked.
    fn shut_out(&self) -> Option<&'static str> {
        let client = self.session.of_client();
        if !client.unattended || client.owner.person().is_none() {
            return None;
        }
        let (Some(auth), Some(person)) = (&self.config().auth, client.person.as_deref()) else {
            return Some("auth");
        };
        if !auth.still_admits(&person.issuer, &person.subject) {
            return Some("auth.blocked");
        }
        let profile = client.owner.profile();
        let opening = opening::of(self.config(), auth, person, profile, None);
        (opening != Opening::Profile(profile)).then_some("auth.profile")
    }

    /// Checks a prompt of a server, by the server's own name.
    pub fn verdict_on_prompt(&self, server: &str, own: &str) -> PolicyVerdict {
        self.verdict_on(ItemKind::Prompt, server, own)
    }

    /// Checks a resource of a server, by the server's own URI.
    pub fn verdict_on_resource(&self, server: &str, uri: &str, claim: UriClaim) -> PolicyVerdict {
        let kind = match claim {
            UriClaim::Listed => ItemKind::Resource,
            UriClaim::Linked => ItemKind::Linked,
            UriClaim::Named => ItemKind::Unlisted,
        };
        self.verdict_on(kind, server, uri)
    }

    /// Checks an item of a server that is not a tool. The item is visible to callers that see its server, if
    /// the rules allow the item.
    fn verdict_on(&self, kind: ItemKind, server: &str, own: &str) -> PolicyVerdict {
        let Some(connection) = self.connection(server) else {
            return PolicyVerdict::Deny(format!("servers.{server}"));
        };
        if let Some(rule) = self.shut_out() {
            return PolicyVerdict::Deny(rule.into());
        }
        if !self.sees(server) {
            let profile = self.scope().map_or("", |scope| scope.name);
            return PolicyVerdict::Deny(format!("profiles.{profile}"));
        }
        let settings = connection.settings();
        let item = PolicyItem::new(kind, server, own, &settings);
        if let Some(app) = &self.session.app
            && kind != ItemKind::Linked
            && !item.matches(&app.allowed)
        {
            return PolicyVerdict::Deny(app.rule());
        }
        policy::check_item(&item, &self.config().policies, self.scope())
    }

    /// Returns what policies with `when` say about the use of a prompt with these params, or about a resource.
    /// The params are few bytes.
    pub fn verdict_on_use(
        &self,
        caller: &Caller,
        kind: ItemKind,
        (server, own): (&str, &str),
        params: &Map<String, Value>,
    ) -> PolicyVerdict {
        let Some(connection) = self.connection(server) else { return PolicyVerdict::Allow };
        let settings = connection.settings();
        let item = PolicyItem::new(kind, server, own, &settings);
        let conditions = Conditions::of_item(self.config(), &item);
        if conditions.is_empty() {
            return PolicyVerdict::Allow;
        }
        conditions.verdict_now(&ConditionInput::new(caller, &name::full_name(server, own), params))
    }

    /// Returns the rule that denies a skill or an app, by its name, to the caller. The catalogue may not
    /// contain it yet.
    pub fn kept_from(&self, kind: EntryKind, name: &str) -> Option<String> {
        if let Some(app) = &self.session.app {
            return Some(app.rule());
        }
        let scope = self.scope()?;
        let full = name::full_name(kind.category()?, name);
        scope
            .profile
            .deny
            .catches(&full, &Spellings::of(&full))
            .then(|| format!("profiles.{}.deny", scope.name))
    }

    /// Returns the person who has signed in, if somebody has.
    pub fn person(&self) -> Option<&Person> {
        self.session.of_client().person.as_deref()
    }

    /// Whether the caller sees only a part of the catalogue: it has a profile, or is an app.
    pub fn is_limited(&self) -> bool {
        self.session.profile.is_some() || self.session.app.is_some()
    }

    /// Whether the rules let the caller use a tool.
    pub fn allows(&self, tool: &Tool) -> bool {
        !matches!(self.verdict(tool), PolicyVerdict::Deny(_))
    }

    /// Records that the session gets a server's instructions. Returns whether they are new to the session.
    pub fn instruct(&self, server: &Arc<str>) -> bool {
        self.session.instruct(server)
    }

    /// Returns the visible tools, skills and apps that the caller may use.
    pub fn tools(&self) -> impl Iterator<Item = &Arc<Tool>> {
        self.snapshot.tools.iter().filter(|tool| self.allows(tool))
    }

    /// Counts the servers' tools that the caller may use.
    pub fn count_tools(&self) -> usize {
        let view = self.view();
        let tools = self.snapshot.tools.iter().zip(&view.seen);
        tools.filter(|(tool, seen)| **seen && tool.is_of_server()).count()
    }

    /// Whether the caller may know of a server. Without a profile: every server. With one: servers with an
    /// allowed tool.
    pub fn sees(&self, server: &str) -> bool {
        if self.is_foreign(server) {
            return false;
        }
        let entry = self.catalog().servers().get(server);
        let mut tools = entry.into_iter().flat_map(|entry| &entry.tools);
        !self.is_limited() || tools.any(|full| self.catalog().get(full).is_some_and(|tool| self.allows(tool)))
    }

    /// Whether the caller may learn that a server exists: the profile shows one of its tools, or might once
    /// they are known. Nonet's own categories always exist.
    pub fn knows(&self, server: &str) -> bool {
        let scope = self.scope();
        if scope.is_none() || name::RESERVED.contains(&server) || self.is_foreign(server) {
            return !self.is_foreign(server);
        }
        let Some(entry) = self.catalog().servers().get(server) else { return may_concern(scope, server) };
        let mut tools = entry.tools.iter().filter_map(|full| self.catalog().get(full));
        tools.any(|tool| !matches!(policy::check(tool, scope), PolicyVerdict::Deny(_)))
    }

    /// Whether the profile might allow tools of a server whose tools are not known yet.
    pub fn may_concern(&self, server: &str) -> bool {
        let app = self.session.app.as_ref();
        app.is_none_or(|app| app.may_concern(server)) && may_concern(self.scope(), server)
    }

    /// Returns the profile's view of the snapshot, computed once for each pair.
    pub fn view(&self) -> Arc<ProfileView> {
        let (snapshot, profile) = (&self.snapshot, &self.session.profile);
        // Views of apps are not cached: an app needs few, and there may be many apps.
        let is_app = self.session.app.is_some();
        let is_same = |lists: &Option<Arc<PersonLists>>| match (lists, &self.lists) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        };
        let is_current =
            |view: &ProfileView| !is_app && Arc::ptr_eq(&view.config, self.config()) && is_same(&view.lists);
        let person = self.lists.as_ref().map(|_| self.session.of_client().owner.clone());
        let owner = Some(self.session.id).filter(|id| snapshot.owners.contains(id));
        let known = match (owner, &person) {
            (Some(id), _) => {
                snapshot.own_views.get(&id).filter(|view| is_current(view)).map(|view| view.clone())
            }
            (None, Some(person)) => {
                snapshot.people_views.get(person).filter(|view| is_current(view)).map(|view| view.clone())
            }
            (None, None) => {
                snapshot.views.get(profile).filter(|view| is_current(view)).map(|view| view.clone())
            }
        };
        if let Some(view) = known {
            return view;
        }
        let (own, of_all) =
            (self.profile().map(|profile| &profile.priorities), &self.config().gateway.priorities);
        let priority = |tool: &Tool| own.and_then(|own| own.of(&tool.full)).or_else(|| of_all.of(&tool.full));
        let tools = snapshot.tools.iter().enumerate();
        let priorities: Box<[_]> = tools.filter_map(|(at, tool)| Some((at, priority(tool)?))).collect();
        let ranked = priorities.iter().filter_map(|(at, _)| snapshot.tool(*at));
        let ranked = ranked.map(|tool| (tool.name.clone(), tool.version.clone())).collect();
        let seen = snapshot.tools.iter().map(|tool| self.allows(tool)).collect();
        let (config, lists) = (self.config().clone(), self.lists.clone());
        let view = Arc::new(ProfileView { config, lists, seen, priorities, ranked });
        match (owner, person) {
            _ if is_app => {}
            (Some(id), _) => drop(snapshot.own_views.insert(id, view.clone())),
            (None, Some(person)) => drop(snapshot.people_views.insert(person, view.clone())),
            (None, None) => drop(snapshot.views.insert(profile.clone(), view.clone())),
        }
        view
    }

    /// Returns the tool that a name means, even if the caller may not use it; `None` if the tool is hidden
    /// from the caller.
    pub fn named(&self, name: &str) -> Option<&Arc<Tool>> {
        let seen = |tool: &Tool| !self.hides(tool);
        let is_there = |server: &str| !self.is_foreign(server);
        let sight =
            CatalogView { seen: &seen, names: &self.world.names, is_there: &is_there, knows: &is_there };
        self.catalog().resolve_among(name, sight).ok().filter(|tool| !self.hides(tool))
    }

    /// Resolves a name to a known tool that the caller may use.
    ///
    /// # Errors
    ///
    /// `unknown_tool` with the nearest names, `invalid_params` for a meta-tool, `forbidden` with the rule.
    pub fn tool(&self, name: &str) -> Result<Arc<Tool>, Fault> {
        if name::META_TOOLS.contains(&name) {
            return Err(not_by_name(name));
        }
        let allows = |tool: &Tool| !tool.is_for_apps_only() && self.allows(tool);
        let is_there = |server: &str| !self.is_foreign(server);
        let knows = |server: &str| self.knows(server);
        let sight =
            CatalogView { seen: &allows, names: &self.world.names, is_there: &is_there, knows: &knows };
        let tool = self.catalog().resolve_among(name, sight).map_err(|fault| match meta_tool(name) {
            Some(meant) if fault.code == FaultCode::UnknownTool => not_by_name(meant),
            _ => fault,
        })?;
        if self.hides(tool) {
            return Err(self.catalog().unknown(name, &allows));
        }
        match self.verdict(tool) {
            PolicyVerdict::Deny(rule) => Err(forbidden(tool, &rule)),
            _ if tool.is_for_apps_only() => Err(forbidden(
                tool,
                "the server lets only its user interface call it (`_meta.ui.visibility`)",
            )),
            _ => Ok(tool.clone()),
        }
    }

    /// Returns the tool that a user interface means by a name. It knows the tools of its server by their own names,
    /// and the call does not say which interface it comes from: so of the servers that have interfaces, only one may
    /// have such a tool. None if no interface may call a tool of this name.
    pub fn ui_tool(&self, name: &str) -> Option<Result<Arc<Tool>, Fault>> {
        let may_call = |tool: &Tool| {
            tool.ui.as_ref().is_none_or(|ui| ui.for_apps) && tool.blocked.is_none() && self.allows(tool)
        };
        if let Some(listed) = self.catalog().by_wire(name) {
            return (listed.ui.is_some() && may_call(listed)).then(|| Ok(listed.clone()));
        }
        let has_ui =
            |tool: &Tool| self.catalog().servers().get(&tool.server).is_some_and(|entry| entry.uis > 0);
        let named =
            self.catalog().by_bare_name(name).filter(|tool| &*tool.name == name || &*tool.own == name);
        let meant: Vec<&Arc<Tool>> = named.filter(|tool| has_ui(tool) && may_call(tool)).collect();
        match &meant[..] {
            [] => None,
            [one] => Some(Ok((*one).clone())),
            many => {
                let fulls: Vec<&Arc<str>> = many.iter().map(|tool| &tool.full).collect();
                Some(Err(self.catalog().ambiguous(name, &fulls)))
            }
        }
    }

    /// Returns the tools that belong to user interfaces and that the caller may use, those that only interfaces call
    /// included.
    pub fn tools_with_ui(&self) -> impl Iterator<Item = &Arc<Tool>> {
        self.catalog().with_ui().filter(|tool| self.allows(tool))
    }

    /// Resolves a name to a meta-tool, in any spelling, unless it names a server and one of its tools.
    pub fn meta_tool(&self, name: &str) -> Option<&'static str> {
        let meant = meta_tool(name)?;
        let own = name::without_client_prefix(name.trim()).unwrap_or(name.trim());
        // `ask.user` is a tool of a server `ask`. A tool's bare name never replaces a meta-tool.
        let is_tool = || {
            !self.world.names.named(name).is_empty()
                && self.tool(name).is_ok_and(|tool| tool.kind == EntryKind::Tool)
        };
        (own == meant || !is_tool()).then_some(meant)
    }

    /// Whether the tool is usable by the caller and has a param of this name.
    pub fn takes(&self, tool: &str, param: &str) -> bool {
        self.tool(tool).is_ok_and(|tool| tool.schema.names(param))
    }

    /// Whether `name` is the own name of a verbatim tool, whose answers pass through unchanged.
    pub fn is_verbatim(&self, name: &str) -> bool {
        self.verbatim_tool(name).is_some_and(|tool| tool.verbatim && self.allows(tool))
    }

    /// Returns the tool that has exactly this listed or wire name, verbatim or not, unless it is hidden from
    /// the caller.
    pub fn verbatim_tool(&self, name: &str) -> Option<&Arc<Tool>> {
        let tool = self.catalog().by_own_name(name).or_else(|| self.catalog().by_wire(name));
        tool.filter(|tool| !self.hides(tool))
    }

    /// Returns the servers that are starting for the first time, have no known list, and may concern the
    /// caller.
    pub fn unlisted(&self) -> Vec<Arc<str>> {
        let unlisted = self.world.connections.iter().filter(|(server, connection)| {
            !connection.state().settled()
                && !self.catalog().servers().contains_key(*server)
                && self.may_concern(server)
        });
        unlisted.map(|(server, _)| server.clone()).collect()
    }

    /// Returns the state of a server; `None` for a ready server and for Nonet itself. Of a server at which people
    /// have accounts of their own, a person sees the state of theirs.
    pub fn trouble(&self, server: &str) -> Option<ServerState> {
        let shared = self.connection(server)?;
        let own = self.own_connection(server);
        let state = match &own {
            Some(own) => own.state(),
            // Theirs begins with their first call.
            None if self.person().is_some() && shared.settings().credentials.are_personal() => return None,
            None => shared.state(),
        };
        Some(state.shown()).filter(|state| *state != ServerState::Ready)
    }

    /// Returns the person's own connection to a server, if there is one.
    pub fn own_connection(&self, server: &str) -> Option<Arc<Connection>> {
        let person = self.person()?;
        self.servers.as_ref()?.personal.known(server, &person.key)
    }

    /// Returns who can approve requests to a server.
    pub fn approve_by(&self, server: &str) -> ApproveBy {
        let own = self.connection(server).and_then(|connection| connection.settings().approve_by);
        own.unwrap_or(self.config().gateway.approve_by)
    }

    /// Returns the state of a tool: its definition is not trusted, or its server is in trouble.
    pub fn state_of(&self, tool: &Tool) -> Option<ToolState> {
        let change = || tool.change.as_ref().map(|change| ToolState::Definition(change.standing));
        let trouble = || self.trouble(tool.at()).map(ToolState::Server);
        if tool.held().is_some() { change() } else { trouble().or_else(change) }
    }

    /// Returns the connected server that a name contains before a separator.
    pub fn named_server(&self, name: &str) -> Option<Arc<str>> {
        let name = self.world.names.behind_other_client(name).unwrap_or(name);
        let named = self.world.names.named(name).iter();
        named.filter(|server| self.knows(server)).find(|server| self.connection(server).is_some()).cloned()
    }

    /// Whether a text is the name of a server, with or without a list, or of one of Nonet's own categories.
    pub fn is_server_name(&self, given: &str) -> bool {
        self.world.names.spelled(given).iter().any(|server| self.knows(server))
    }

    /// Returns the servers whose prompt a name of a skill names: `good` for `good/greet` and
    /// `skills.good/greet`.
    pub fn servers_of_skill(&self, name: &str) -> Vec<Arc<str>> {
        let mut named = self.world.names.named(name);
        if named.iter().any(|server| **server == *SKILLS)
            && let Some((_, rest)) = name::split_given(name)
        {
            named = self.world.names.named(rest);
        }
        named.iter().filter(|server| !self.is_foreign(server)).cloned().collect()
    }

    /// Returns the tools of a category (a server, `gateway`, `skills`, `apps`, or a group of the
    /// configuration) as documents in order of name.
    ///
    /// # Errors
    ///
    /// `not_found` with the nearest names; for a left-out server, why it is left out.
    pub fn members(&self, category: &str, reader: Reader) -> Result<BTreeSet<usize>, Fault> {
        let key = category.trim();
        let snapshot = &self.snapshot;
        if let Some(entry) = self.server(key).filter(|_| self.knows(key)) {
            return Ok(entry.tools.iter().filter_map(|full| snapshot.place(full)).collect());
        }
        let shows = |group: &Category| {
            let mut members = in_group(snapshot, group).filter_map(|at| snapshot.tool(at));
            !self.is_limited() || members.any(|tool| self.allows(tool))
        };
        if let Some(group) = self.config().categories.get(key).filter(|group| shows(group)) {
            return Ok(in_group(snapshot, group).collect());
        }
        // Configured, but without a list yet; or no skills or apps.
        if self.connection(key).is_some() && self.knows(key) || name::RESERVED.contains(&key) {
            return Ok(BTreeSet::new());
        }
        if let Some(fault) = self.left_out_server(key) {
            return Err(fault);
        }
        let listed = self.servers().map(|(name, _)| name);
        let servers: BTreeSet<&Arc<str>> = listed.chain(self.world.connections.keys()).collect();
        let known = servers.into_iter().map(|name| &**name).filter(|name| self.knows(name));
        let groups = self.config().categories.iter().filter(|(_, group)| shows(group));
        let known: Vec<&str> = known.chain(groups.map(|(name, _)| name.as_str())).collect();
        let near = name::nearest_in_meaning(key, known.iter().copied(), 3);
        let fault = match near.first() {
            Some(first) => Fault::new(
                FaultCode::NotFound,
                format!("There is no category `{key}`. The nearest is `{first}`."),
            )
            .next("browse_category", json!({ "category": first })),
            None => {
                let all = NextStep::new("list_categories", json!({})).named(reader);
                let message = format!("There is no category `{key}`; {all} has all of them.");
                Fault::new(FaultCode::NotFound, message)
            }
        };
        Err(fault.suggest(near))
    }
}

/// Returns the documents of a named group.
fn in_group<'a>(snapshot: &'a Snapshot, group: &'a Category) -> impl Iterator<Item = usize> + 'a {
    let tools = snapshot.tools.iter().enumerate();
    tools.filter(|(_, tool)| policy::in_category(tool, group)).map(|(at, _)| at)
}

fn not_by_name(meta_tool: &str) -> Fault {
    Fault::new(
        FaultCode::InvalidParams,
        format!(
            "`{meta_tool}` is a meta-tool; call it directly. Only tools of servers and of `gateway` are called by name."
        ),
    )
}

fn forbidden(tool: &Tool, rule: &str) -> Fault {
    if let Some(change) = tool.change.as_ref().filter(|change| change.rule == rule) {
        return denied(tool, change);
    }
    let fault = may_not_be_used(&tool.full, rule);
    fault.next("search_tools", json!({ "query": tool.name.replace(['_', '-'], " ") }))
}

/// Builds the fault for a name that a rule denies to a caller.
pub(crate) fn may_not_be_used(name: &str, rule: &str) -> Fault {
    let message = format!(
        "`{name}` may not be used: the rule `{rule}` of the configuration forbids it. Use another tool, or ask the user to change the rule."
    );
    Fault::new(FaultCode::Forbidden, message)
}

fn may_concern(scope: Option<PolicyScope<'_>>, server: &str) -> bool {
    let Some(PolicyScope { profile, categories, .. }) = scope else { return true };
    let any_tool = format!("{server}._");
    let own = format!("{server}.");
    let names = |patterns: &[String]| patterns.iter().any(|pattern| pattern.starts_with(&own));
    if profile.deny.matches(&any_tool) {
        return false;
    }
    let is_beyond = |only: &Globs| !only.matches(&any_tool) && !names(only.patterns());
    if profile.only.as_ref().is_some_and(is_beyond) {
        return false;
    }
    let is_limited = profile.is_limited();
    let holds = |category: &String| {
        category == server
            || categories
                .get(category)
                .is_some_and(|group| group.servers.iter().any(|name| name.as_str() == server))
    };
    !is_limited || profile.categories.iter().any(holds) || names(profile.allow.patterns())
}

/// Builds the fault for a tool that is hidden because its definition changed.
pub(crate) fn denied(tool: &Tool, change: &DefinitionChange) -> Fault {
    let message = format!(
        "`{}` may not be used: its definition is {} and not trusted, and `{}` is `deny`. The user can trust it with \
         `nonet trust`. What differs, in the server's words:\n{}",
        tool.full,
        change.standing.as_str(),
        change.rule,
        change.difference
    );
    Fault::new(FaultCode::Forbidden, message)
}

/// Nonet's own tools whose every call the user approves.
const ALWAYS_ASK: [&str; 3] = ["add_server", "remove_server", "save_script"];

/// Whether the user approves every call of a tool, whatever the rules say: a tool of Nonet that can do harm.
pub(crate) fn always_asks(tool: &Tool) -> bool {
    &*tool.server == GATEWAY && ALWAYS_ASK.contains(&&*tool.name)
}

#[cfg(test)]
mod tests;

/// The largest params that a suggested call repeats, in bytes of JSON.
const MAX_REPEATED: usize = 4_000;

/// Turns the only near name in a fault for an unknown tool into the corrected call, if the params fit that
/// tool.
pub(crate) fn with_the_near_call(gate: &Gate, fault: Fault, params: &Value) -> Fault {
    let [only] = &fault.did_you_mean[..] else { return fault };
    if fault.code != FaultCode::UnknownTool || json_len(params) > MAX_REPEATED {
        return fault;
    }
    let tool = gate.tool(only).ok().filter(|tool| tool.schema.is_quick());
    let Some((tool, reading)) =
        tool.and_then(|tool| tool.schema.read(params.clone()).ok().map(|read| (tool, read)))
    else {
        return fault;
    };
    let (meta_tool, arguments) = tool.meta_call(&reading.params);
    fault.next(meta_tool, Value::Object(arguments))
}
