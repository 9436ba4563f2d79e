"""One configuration with everything it names: plans, tools, servers, models. Both programs start here.

    config ─▶ plan directories ─▶ catalog ─┐
           ─▶ [mcp] ─▶ pool of servers ────┤
           ─▶ tool directories, packs ─────┼─▶ registry ─▶ services ─▶ execution.run
           ─▶ [providers], [models] ───────┘

Opening a workspace reads files and connects to nothing. It is a snapshot: what a run uses does not change under it. To
see changed files, open another one with the same pool, so that the servers' processes live on.
"""

from . import authoring, builtins, config, control, documents, execution, mcp_client, models, planner, tools
from . import user_tools, validation, wire


class Workspace:
    """What a configuration gives. Attributes are read-only; every thread may use them.

    config, catalog, registry, models, services (for execution.run), store (for edits), servers (configured names),
    pool (the servers' processes).
    """

    def __init__(self, configuration, catalog, sources, model_access, pool, owns_pool):
        self._owns_pool = owns_pool
        self._user_tools = next(source for source in sources if isinstance(source, user_tools.UserTools))
        self.config = configuration
        self.catalog = catalog
        self.servers = frozenset(configuration.mcp)
        self.models = model_access
        self.pool = pool
        controls = {name: entry.tool for name, entry in control.CONTROLS.items()}
        self.registry = tools.Registry(sources, controls)
        self.store = authoring.Store(configuration.plan_dirs)
        self.services = execution.Services(
            registry=self.registry,
            controls=control.CONTROLS,
            models=model_access,
            catalog=catalog,
            servers=self.servers,
            pricing=configuration.pricing,
            settings=configuration.settings,
            user=configuration.user,
        )

    def find_plan(self, identifier):
        """Return the Plan of an identifier. UnknownPlan."""
        return self.catalog.find_plan(identifier)

    def secrets(self):
        """Return the texts that no record may hold: those of the configuration and those of the user tools."""
        return self.config.secrets | self._user_tools.secrets()

    def problems(self, document):
        """Return every Problem of a document, static ones and those on this machine."""
        return validation.problems_of(document, *self._surroundings())

    def validate(self, document):
        """Return what `validate` reports about a document: {"plan", "steps", "ok", "problems", "notes"}."""
        return validation.validate_body(document, *self._surroundings())

    def _surroundings(self):
        return self.registry, self.find_plan, self.servers, self.models.names()

    def close(self):
        """Give up what the sources hold; the pool too when nobody else keeps it."""
        self.registry.close()
        if self._owns_pool:
            self.pool.close()


def open_workspace(project, environ, *, isolated=False, pool=None):
    """Read the configuration and everything it names; return the Workspace. ConfigError.

    project: directory of the project layer, or None. isolated: nothing may depend on the working directory. pool: the
    mcp_client.Pool of the caller, who closes it; without one the workspace has its own. Plan and tool files that
    cannot be used are listed in `catalog.skipped` and the sources' notes, and never raise.
    """
    configuration = config.load(project, environ, isolated=isolated)
    catalog = documents.scan(configuration.plan_dirs, servers=configuration.mcp, check=validation.static_problems)
    model_access = models.Models(configuration)
    packs = builtins.Builtins(configuration.packs, model_access)  # may refuse, so before the pool changes
    owned = pool is None
    pool = mcp_client.Pool(wire, environ) if owned else pool
    pool.sync(configuration.mcp, configuration.deferred, configuration.settings.connect_timeout_s)
    sources = [
        *(pool.source(name) for name in sorted(configuration.mcp)),
        packs,
        user_tools.UserTools(configuration.tool_dirs, environ),
        execution.PlanSource(catalog),
        planner.Planner(),
    ]
    return Workspace(configuration, catalog, sources, model_access, pool, owned)
