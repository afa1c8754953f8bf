package io.github.fencelock.junit;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Comparator;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;
import org.junit.jupiter.api.extension.ExtensionContext;

/** A process of fencelock with its locks in a temporary file. */
final class ServerProcess implements ExtensionContext.Store.CloseableResource {
    private static final Pattern LISTENING = Pattern.compile("\"msg\":\"listening\",\"addr\":\"([^\"]*)\"");

    private final Process process;
    private final Path folder;
    private final String url;

    private ServerProcess(Process process, Path folder, String url) {
        this.process = process;
        this.folder = folder;
        this.url = url;
    }

    static ServerProcess start() {
        try {
            Path folder = Files.createTempDirectory("fencelock-junit-");
            ProcessBuilder serve = new ProcessBuilder(program(), "serve").redirectErrorStream(true);
            serve.environment().keySet().removeIf(name -> name.startsWith("FENCELOCK_"));
            serve.environment().put("FENCELOCK_DATA", folder.resolve("fencelock.db").toString());
            serve.environment().put("FENCELOCK_LISTEN", "127.0.0.1:0");
            serve.environment().put("FENCELOCK_ADMIN_LISTEN", "127.0.0.1:0");
            serve.environment().put("FENCELOCK_DEFAULT_TTL", "1500ms");
            Process process = serve.start();
            // Ends the server with this process, even if JUnit does not reach its end.
            Runtime.getRuntime().addShutdownHook(new Thread(process::destroyForcibly));
            return new ServerProcess(process, folder, "http://" + address(process));
        } catch (IOException e) {
            throw new UncheckedIOException("fencelock cannot be started: put it into PATH, or name it in the variable FENCELOCK_PROGRAM or the system property fencelock.program", e);
        }
    }

    private static String program() {
        return System.getProperty("fencelock.program", System.getenv().getOrDefault("FENCELOCK_PROGRAM", "fencelock"));
    }

    private static String address(Process process) throws IOException {
        BufferedReader lines = new BufferedReader(new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8));
        StringBuilder said = new StringBuilder();
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            said.append(line).append('\n');
            Matcher listening = LISTENING.matcher(line);
            if (!listening.find()) continue;
            drain(lines);
            return listening.group(1);
        }
        throw new IOException("fencelock has ended:\n" + said);
    }

    /** Keeps reading the output, so that the process never blocks on a full pipe. */
    private static void drain(BufferedReader lines) {
        Thread reader = new Thread(() -> lines.lines().forEach(line -> {}), "output of fencelock");
        reader.setDaemon(true);
        reader.start();
    }

    String url() {
        return url;
    }

    @Override
    public void close() throws IOException, InterruptedException {
        process.destroyForcibly().waitFor();
        try (Stream<Path> files = Files.walk(folder)) {
            for (Path file : files.sorted(Comparator.reverseOrder()).toList()) Files.delete(file);
        }
    }
}
