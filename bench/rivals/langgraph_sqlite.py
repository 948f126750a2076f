"""LangGraph with its SQLite checkpointer and durability="sync": model node, tool node, and back."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

from bench.rivals.program import deploy as deploying
from bench.rivals.program import main, note


def _run(folder: Path, calls: int, act: Callable[[], str], seen: Callable[[Any], None] = lambda messages: None) -> str:
    @tool
    def deploy() -> str:
        """Deploy."""
        return act()

    def model(state: MessagesState) -> dict[str, Any]:
        seen(state["messages"])
        n = sum(message.type == "tool" for message in state["messages"])
        if n == calls:
            return {"messages": [AIMessage("done")]}
        return {"messages": [AIMessage("", tool_calls=[{"name": "deploy", "args": {}, "id": f"c{n}"}])]}

    graph = StateGraph(MessagesState)
    graph.add_node("model", model)
    graph.add_node("tools", ToolNode([deploy]))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", lambda state: "tools" if state["messages"][-1].tool_calls else END)
    graph.add_edge("tools", "model")
    with SqliteSaver.from_conn_string(str(folder / "checkpoints.db")) as saver:
        compiled = graph.compile(checkpointer=saver)
        config: Any = {"configurable": {"thread_id": "t"}, "recursion_limit": 2 * calls + 10}
        begun = compiled.get_state(config).next != ()
        out = compiled.invoke(None if begun else {"messages": [HumanMessage("go")]}, config, durability="sync")
        return str(out["messages"][-1].text)


def _crash(folder: Path) -> str:
    return _run(folder, 1, lambda: deploying(folder), lambda messages: note(folder, messages))


def _turns(folder: Path, count: int) -> list[float]:
    marks: list[float] = []
    _run(folder, count, lambda: marks.append(time.perf_counter()) or "ok")  # type: ignore[func-returns-value]
    return marks


if __name__ == "__main__":
    main(_crash, _turns)
