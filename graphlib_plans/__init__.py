"""A plan engine on the standard `graphlib`: reviewed pipelines of tool calls, run by one command.

The modules form rows, and a module imports only from rows above its own (tests/plans/test_imports.py proves it):

    0  errors paths                          what goes wrong, where files live
    1  documents templates schema            plan files, {{references}}, JSON Schema
       processes web parallel                programs we start, HTTP requests, threads
    2  dependencies records                  step order, run records and usage
    3  config tools validation               settings, the tool registry, problems of a plan
    3b calls                                 one call: its retries, record and bodies
    4  execution control authoring drawing   running, the seven control steps, editing, pictures
       mcp_links                             the two transports of mcp_client
    5  wire mcp_client user_tools builtins models planner
    5b workspace                             one configuration with everything it names, put together
    6  drafting terminal                     plans written by a model, progress and questions on a terminal
       mcp_surface mcp_questions             what the plan server offers and how it asks, as values
       mcp_streams                           its lines, requests and threads
    6b mcp_calls, on top of it mcp_server    what its tools do, and the server itself
    7  commands, on top of it cli, __main__
"""

__version__ = "0.1.0+dev"
