import java.io.IOException;
import java.util.Objects;
import java.util.UUID;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.TimeUnit;

/** The framework of the program: named checks, one line each, and the broker's restart. */
final class Checks {
    static final String AMQP_URL = environment("AMQP_URL", "amqp://guest:guest@127.0.0.1:5672/%2F");
    static final String RESTART_CMD = environment("RESTART_CMD", "");
    static final String CONSUMER_GROUPS = environment("CONSUMER_GROUPS", "");
    static final long PROGRAM_MS = 230_000;
    static final long WAIT_MS = 40_000;
    static final long RESTART_MS = 130_000;

    private static final String PREFIX = "clients.java." + UUID.randomUUID().toString().substring(0, 8);

    private int passed;
    private int failed;

    interface Check {
        void run() throws Exception;
    }

    static final class CheckFailed extends RuntimeException {
        private static final long serialVersionUID = 1;

        CheckFailed(String reason) {
            super(reason);
        }
    }

    static String environment(String key, String fallback) {
        String value = System.getenv(key);
        return value == null || value.isEmpty() ? fallback : value;
    }

    static String name(String noun) {
        return PREFIX + "." + noun;
    }

    static void equal(Object got, Object want, String what) {
        if (!Objects.equals(got, want)) {
            throw new CheckFailed(what + ": got " + got + ", want " + want);
        }
    }

    static void that(boolean holds, String what) {
        if (!holds) {
            throw new CheckFailed(what);
        }
    }

    static void contains(String text, String part) {
        that(String.valueOf(text).contains(part), "'" + part + "' not in '" + text + "'");
    }

    static <T> T take(BlockingQueue<T> from, String what) throws InterruptedException {
        T value = from.poll(WAIT_MS, TimeUnit.MILLISECONDS);
        that(value != null, "timed out: " + what);
        return value;
    }

    void run(String title, Check check) {
        try {
            check.run();
            passed++;
            System.out.println("ok " + title);
        } catch (Exception error) {
            failed++;
            String reason = error instanceof CheckFailed ? error.getMessage() : error + " " + error.getCause();
            System.out.println("FAIL " + title + " " + String.valueOf(reason).replaceAll("\\s+", " "));
        }
    }

    void runWithRestart(String title, Check check) {
        if (RESTART_CMD.isEmpty()) {
            System.out.println("skip " + title + " RESTART_CMD is not set");
        } else {
            run(title, check);
        }
    }

    void runWithGroups(String title, Check check) {
        if (CONSUMER_GROUPS.isEmpty()) {
            System.out.println("skip " + title + " CONSUMER_GROUPS is not set");
        } else {
            run(title, check);
        }
    }

    int finish() {
        System.out.println(passed + " passed, " + failed + " failed");
        return failed > 0 || passed == 0 ? 1 : 0;
    }

    static void restartBroker() throws IOException, InterruptedException {
        Process restart = new ProcessBuilder("/bin/sh", "-c", RESTART_CMD)
                .redirectErrorStream(true)
                .redirectOutput(ProcessBuilder.Redirect.DISCARD)
                .start();
        if (!restart.waitFor(RESTART_MS, TimeUnit.MILLISECONDS)) {
            restart.destroyForcibly();
            throw new CheckFailed("RESTART_CMD took too long");
        }
        equal(restart.exitValue(), 0, "exit code of RESTART_CMD");
    }

    static void limitTheProgram() {
        Thread watchdog = new Thread(() -> {
            try {
                Thread.sleep(PROGRAM_MS);
                System.out.println("FAIL program timed out");
            } catch (InterruptedException ended) {
                System.out.println("FAIL program interrupted");
            }
            Runtime.getRuntime().halt(1);
        });
        watchdog.setDaemon(true);
        watchdog.start();
    }
}
