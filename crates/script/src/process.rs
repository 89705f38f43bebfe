//! The gateway's end of a worker: starts it, writes to it, reads from it, and ends it.

use std::{
    io,
    path::Path,
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use serde::Serialize;
use tokio::{
    io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader},
    process::{Child, Command},
    sync::{Notify, mpsc},
};

use crate::{
    SCRIPT_COMMAND,
    frames::{FromWorker, MAX_LINE, Start, ToWorker},
};

/// Why a worker cannot be used any more.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// It did not start.
    #[error("the process for the script did not start: {0}")]
    Start(io::Error),
    /// It has ended, or was ended, before the script has.
    #[error("the process of the script ended without an answer ({0})")]
    Ended(String),
    /// It has sent what is no message, or one that is too long.
    #[error("the process of the script sent a message that cannot be read ({0})")]
    Unreadable(String),
}

/// How many messages may wait for the worker to read them: more than a script makes requests.
const QUEUE: usize = 8 << 10;

/// The messages that a worker has not read yet.
#[derive(Debug, Default)]
pub struct Unread {
    bytes: AtomicUsize,
    less: Notify,
}

impl Unread {
    /// Returns their size.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Acquire)
    }

    /// Waits until they have less than this many bytes.
    pub async fn below(&self, most: usize) {
        loop {
            let less = self.less.notified();
            tokio::pin!(less);
            less.as_mut().enable();
            if self.bytes() < most {
                return;
            }
            less.await;
        }
    }
}

/// The process of one script. It ends when this is dropped.
pub struct Worker {
    child: Option<Child>,
    /// To the task that writes: the worker reads nothing while it writes itself.
    input: mpsc::Sender<Vec<u8>>,
    unread: Arc<Unread>,
    output: Box<dyn AsyncBufRead + Send + Unpin>,
    line: Vec<u8>,
}

impl Worker {
    /// Starts a script as `executable` with [`SCRIPT_COMMAND`].
    pub async fn start(executable: &Path, start: &Start) -> Result<Self, WorkerError> {
        let mut command = Command::new(executable);
        // Windows needs some variables to start a program; a script needs none.
        #[cfg(unix)]
        command.env_clear();
        let mut child = command
            .arg(SCRIPT_COMMAND)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .map_err(WorkerError::Start)?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (input, output) =
            pipes.ok_or_else(|| WorkerError::Start(io::Error::other("its pipes are missing")))?;
        Self::over(Some(child), input, output, start).await
    }

    async fn over(
        child: Option<Child>,
        input: impl AsyncWrite + Send + Unpin + 'static,
        output: impl tokio::io::AsyncRead + Send + Unpin + 'static,
        start: &Start,
    ) -> Result<Self, WorkerError> {
        let output = Box::new(BufReader::with_capacity(64 << 10, output));
        let (queue, messages) = mpsc::channel(QUEUE);
        let unread = Arc::new(Unread::default());
        tokio::spawn(written(input, messages, unread.clone()));
        let mut worker = Self { child, input: queue, unread, output, line: Vec::new() };
        worker.write(start).await?;
        Ok(worker)
    }

    /// Sends a message.
    pub async fn send(&mut self, message: &ToWorker) -> Result<(), WorkerError> {
        self.write(message).await
    }

    async fn write(&mut self, message: &impl Serialize) -> Result<(), WorkerError> {
        let mut bytes =
            serde_json::to_vec(message).map_err(|error| WorkerError::Unreadable(error.to_string()))?;
        bytes.push(b'\n');
        self.unread.bytes.fetch_add(bytes.len(), Ordering::AcqRel);
        // If nobody takes the message, the next read says why.
        let _ = self.input.send(bytes).await;
        Ok(())
    }

    /// Returns the messages that the worker has not read yet.
    pub fn unread(&self) -> Arc<Unread> {
        self.unread.clone()
    }

    /// Returns the next message. Nothing is lost if this is cancelled.
    pub async fn read(&mut self) -> Result<FromWorker, WorkerError> {
        let left = (MAX_LINE + 1).saturating_sub(self.line.len());
        let mut limited = (&mut self.output).take(left as u64);
        let read = limited.read_until(b'\n', &mut self.line).await;
        if let Err(error) = read {
            return Err(WorkerError::Ended(error.to_string()));
        }
        if self.line.last() != Some(&b'\n') {
            return Err(match self.line.len() > MAX_LINE {
                true => WorkerError::Unreadable(format!("more than {MAX_LINE} bytes")),
                false => WorkerError::Ended(self.exit().await),
            });
        }
        let message = serde_json::from_slice(&self.line);
        self.line.clear();
        message.map_err(|error| WorkerError::Unreadable(error.to_string()))
    }

    async fn exit(&mut self) -> String {
        let Some(child) = &mut self.child else { return "it hung up".into() };
        match child.wait().await {
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        }
    }
}

/// Writes messages to a worker until one cannot be written, or there are no more.
async fn written(
    mut input: impl AsyncWrite + Unpin,
    mut messages: mpsc::Receiver<Vec<u8>>,
    unread: Arc<Unread>,
) {
    while let Some(bytes) = messages.recv().await {
        let written = async {
            input.write_all(&bytes).await?;
            input.flush().await
        };
        if let Err(error) = written.await {
            return tracing::debug!(%error, "a worker takes no more messages");
        }
        unread.bytes.fetch_sub(bytes.len(), Ordering::AcqRel);
        unread.less.notify_waiters();
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Runs a script in a thread of this process, over pipes as in a process of its own.
    #[cfg(unix)]
    pub(crate) async fn in_thread(start: &Start) -> Worker {
        use std::os::unix::net::UnixStream;
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        ours.set_nonblocking(true).expect("not blocking");
        let input = theirs.try_clone().expect("a copy");
        let thread = std::thread::Builder::new().stack_size(8 << 20);
        thread.spawn(move || crate::worker::run(input, theirs, |_| {})).expect("a thread");
        let ours = tokio::net::UnixStream::from_std(ours).expect("a stream");
        let (output, input) = ours.into_split();
        Worker::over(None, input, output, start).await.expect("it starts")
    }
}
