/** A client of the fencelock lock service: leases with fencing tokens, kept alive while you work. */
module io.github.fencelock {
    requires com.fasterxml.jackson.core;
    requires transitive java.net.http;
    requires transitive java.sql;

    exports io.github.fencelock;
}
