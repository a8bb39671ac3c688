//! Configurations as people write them, good and bad.

use super::*;
use std::path::Path;

fn refused(text: &str) -> String {
    let file = match ConfigFile::parse(Path::new("/etc/c.toml"), text) {
        Err(error) => return error.to_string(),
        Ok(file) => file,
    };
    resolve(Settings::default(), Some(&file)).unwrap_err().to_string()
}

#[test]
fn every_slip_is_refused_with_its_line() {
    let table = [
        ("mesh_prefx = \"10.90.0.0/24\"", "/etc/c.toml:1: there is no key `mesh_prefx`; did you mean `mesh_prefix`?"),
        ("# a\n\n[ports]\nmehs = 4300", "/etc/c.toml:4: there is no key `ports.mehs`; did you mean `ports.mesh`?"),
        ("[port]\nmesh = 4300", "/etc/c.toml:2: there is no key `port.mesh`; did you mean `ports.mesh`?"),
        ("something_else_entirely = 1", "/etc/c.toml:1: there is no key `something_else_entirely`"),
        ("fleet = \"lab\"\nfleet = \"b\"", "/etc/c.toml:2: duplicate key"),
        ("fleet = lab", "/etc/c.toml:1: "),
        ("fleet = \"Lab\"", "/etc/c.toml:1: `Lab` has the character 'L'"),
        ("fleet = 5", "/etc/c.toml:1: invalid type: integer `5`, expected a string"),
        ("\nnode = \"yes\"", "/etc/c.toml:2: invalid type: string \"yes\", expected a boolean"),
        ("advertise = \"a\"", "/etc/c.toml:1: invalid type: string \"a\", expected a sequence"),
        ("advertise = [\"10.0.0.1:5\"]", "/etc/c.toml:1: `10.0.0.1:5` is not an address or a host name"),
        (
            "mesh_prefix = \"10.90.5.0/16\"",
            "/etc/c.toml:1: `10.90.5.0/16` has host bits set: did you mean 10.90.0.0/16?",
        ),
        ("ports = 4300", "/etc/c.toml:1: invalid type"),
        ("ports.mesh = 70000", "/etc/c.toml:1: invalid value: integer `70000`, expected u16"),
        ("listen = \"0.0.0.0\"\nports.mesh = 0", "/etc/c.toml:2: `ports.mesh` is 0, and a port is 1 to 65535"),
        ("ports.mesh = 5\nports.page = 5", "/etc/c.toml:2: `ports.page` and /etc/c.toml:1: `ports.mesh`: both are 5"),
        ("ports.mesh = 4301", "`ports.gateway` and /etc/c.toml:1: `ports.mesh`: both are 4301"),
        ("dns = \"127.0.0.1:4300\"", "/etc/c.toml:1: `dns` and `ports`: 127.0.0.1:4300 has port 0 or the port of"),
        (
            "certificate_life = \"1y\"",
            "/etc/c.toml:1: `1y` is no life of a certificate: give a number with s, m, h or d",
        ),
        ("fleet = \"lab\"\nsource_slots = 65", "/etc/c.toml:2: `source_slots`: there are 65, and 0 to 64 can be had"),
        ("source_slots = -1", "/etc/c.toml:1: invalid value: integer `-1`, expected u8"),
        ("listen = \"224.0.0.1\"", "/etc/c.toml:1: `listen`: nothing can listen on the multicast address 224.0.0.1"),
    ];
    for (text, start) in table {
        let shown = refused(text);
        assert!(shown.starts_with(start), "{text:?} gave {shown:?}");
        assert_eq!(shown.lines().count(), 1, "{shown:?}");
    }
}

#[test]
fn flags_win_over_the_file_and_the_file_over_defaults() {
    let text = "fleet = \"lab\"\nadvertise = [\"198.51.100.2\"]\n[ports]\nmesh = 5300\npage = 5380\n";
    let file = ConfigFile::parse(Path::new("c.toml"), text).unwrap();
    assert_eq!(file.lines["ports.page"], 5);
    let flags = Settings { ports: PortSettings { mesh: Some(6300), ..PortSettings::default() }, ..Settings::default() };
    let config = resolve(flags, Some(&file)).unwrap();
    assert_eq!(config.fleet.unwrap().as_str(), "lab");
    assert_eq!((config.ports.mesh, config.ports.page, config.ports.gateway), (6300, 5380, 4301));
    assert_eq!(config.mesh_prefix, None, "a default is not mistaken for something said");
}

#[test]
fn every_default_is_a_known_key_and_an_empty_file_is_fine() {
    let known = keys();
    for (key, _) in Settings::defaults().listed() {
        assert!(known.contains(&key), "{key}");
    }
    assert_eq!(known.len(), 13);
    let empty = ConfigFile::parse(Path::new("c.toml"), "").unwrap();
    assert_eq!(resolve(Settings::default(), Some(&empty)).unwrap(), resolve(Settings::default(), None).unwrap());
}
