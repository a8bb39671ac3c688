//! The smallest web server: one page for whoever asks, so that a lab needs no other program to have something to fetch.

use super::Lab;
use anyhow::{Context, Result};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

/// Serves `page` on a host at `address` until this process ends. When it returns, the server answers.
///
/// # Errors
/// If the namespace is gone or the address taken.
pub fn serve_page(lab: &Lab, host: &str, address: SocketAddr, page: &str) -> Result<()> {
    let listener =
        lab.inside(host, || TcpListener::bind(address))?.with_context(|| format!("listening on {address}"))?;
    let page = page.to_owned();
    std::thread::spawn(move || answer_all(&listener, &page));
    Ok(())
}

/// Gives every visitor of a listener the page, one after another, for ever.
pub fn answer_all(listener: &TcpListener, page: &str) {
    for visitor in listener.incoming().flatten() {
        // A visitor who goes away early is their own business.
        let _ = answer(&visitor, page);
    }
}

fn answer(mut visitor: &TcpStream, page: &str) -> std::io::Result<()> {
    visitor.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut lines = BufReader::new(visitor).lines();
    while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
    let length = page.len();
    write!(visitor, "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\n")?;
    write!(visitor, "Connection: close\r\n\r\n{page}")
}
