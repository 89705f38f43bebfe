// --- tasks and kept results ---

function showTasks(tasks) {
  hide("no-tasks", tasks.length > 0);
  fill($("tasks"), tasks.slice(0, 20), () => {
    const [tool, mark, took, id, progress] = ["p.mono.said", "span", "span.num", "span.soft.mono.said", "span.said"].map((kind) => make(kind));
    return {
      node: make("li", {}, tool, make("div.line.small", {}, mark, took, id, progress)),
      show(task) {
        write(tool, said(task.tool, 120));
        stateMark(mark, task.state);
        write(took, micros((task.elapsed_ms ?? 0) * 1000));
        write(id, said(task.task_id, 40));
        write(progress, said(task.progress?.message ?? task.message, 200));
      },
    };
  });
}

function showKept(results) {
  write("kept", results?.entries ? `${plural(results.entries, "result")} kept for later reading: ${bytes(results.bytes)}.` : "No result is kept.");
}
