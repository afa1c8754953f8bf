package io.github.fencelock.junit;

import org.junit.jupiter.api.extension.ExtensionContext;
import org.junit.jupiter.api.extension.ExtensionContext.Namespace;
import org.junit.jupiter.api.extension.ParameterContext;
import org.junit.jupiter.api.extension.ParameterResolver;

/**
 * Gives a test a parameter of the type {@link FencelockService}, for a server of fencelock that starts with the first such test
 * and ends after the last. Each test has clients of its own, which are closed after it.
 *
 * <p>The system property {@code fencelock.program} names the program, else the variable {@code FENCELOCK_PROGRAM} does; else it is {@code fencelock} in PATH.
 */
public final class FencelockExtension implements ParameterResolver {
    private static final Namespace NAMESPACE = Namespace.create(FencelockExtension.class);

    /** Called by JUnit. */
    public FencelockExtension() {}

    @Override
    public boolean supportsParameter(ParameterContext parameter, ExtensionContext test) {
        return parameter.getParameter().getType() == FencelockService.class;
    }

    @Override
    public FencelockService resolveParameter(ParameterContext parameter, ExtensionContext test) {
        ServerProcess server = test.getRoot().getStore(NAMESPACE).getOrComputeIfAbsent(ServerProcess.class, key -> ServerProcess.start(), ServerProcess.class);
        return test.getStore(NAMESPACE).getOrComputeIfAbsent(FencelockService.class, key -> new FencelockService(server.url()), FencelockService.class);
    }
}
