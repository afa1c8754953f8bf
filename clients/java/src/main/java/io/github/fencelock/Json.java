package io.github.fencelock;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonGenerator;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;

/** JSON values as Map, List, String, Number, Boolean and null. */
final class Json {
    private static final JsonFactory FACTORY = new JsonFactory();
    private static final int MAX_DEPTH = 100;

    private Json() {}

    /** The JSON object that the bytes are; empty if they are not one. */
    static Optional<Map<String, Object>> object(byte[] text) {
        try (JsonParser parser = FACTORY.createParser(text)) {
            if (parser.nextToken() != JsonToken.START_OBJECT) return Optional.empty();
            Map<String, Object> members = members(parser, 0);
            return parser.nextToken() == null ? Optional.of(members) : Optional.empty();
        } catch (IOException e) {
            return Optional.empty();
        }
    }

    private static Map<String, Object> members(JsonParser parser, int depth) throws IOException {
        Map<String, Object> members = new LinkedHashMap<>();
        for (String name = parser.nextFieldName(); name != null; name = parser.nextFieldName()) {
            parser.nextToken();
            members.put(name, value(parser, depth + 1));
        }
        return members;
    }

    private static Object value(JsonParser parser, int depth) throws IOException {
        if (depth > MAX_DEPTH) throw new IOException("nested too deeply");
        switch (parser.currentToken()) {
            case START_OBJECT:
                return members(parser, depth);
            case START_ARRAY:
                List<Object> values = new ArrayList<>();
                while (parser.nextToken() != JsonToken.END_ARRAY) values.add(value(parser, depth + 1));
                return values;
            case VALUE_STRING:
                return parser.getText();
            case VALUE_NUMBER_INT, VALUE_NUMBER_FLOAT:
                return parser.getNumberValue();
            case VALUE_TRUE:
                return true;
            case VALUE_FALSE:
                return false;
            default:
                return null;
        }
    }

    /** Throws IllegalArgumentException for a value that JSON has no form for. */
    static byte[] bytes(Object value) {
        ByteArrayOutputStream out = new ByteArrayOutputStream(256);
        try (JsonGenerator generator = FACTORY.createGenerator(out)) {
            write(generator, value);
        } catch (IOException e) {
            throw new IllegalArgumentException(e.getMessage(), e);
        }
        return out.toByteArray();
    }

    private static void write(JsonGenerator to, Object value) throws IOException {
        if (value instanceof Map<?, ?> members) {
            to.writeStartObject();
            for (Map.Entry<?, ?> member : members.entrySet()) {
                to.writeFieldName(String.valueOf(member.getKey()));
                write(to, member.getValue());
            }
            to.writeEndObject();
        } else if (value instanceof Collection<?> values) {
            to.writeStartArray();
            for (Object each : values) write(to, each);
            to.writeEndArray();
        } else if (value == null || value instanceof String || value instanceof Number || value instanceof Boolean) {
            to.writeObject(value); // the generator writes these types without a codec
        } else {
            throw new IllegalArgumentException("JSON has no form for a " + value.getClass().getName());
        }
    }

    /** The text in a field; "" if there is none. */
    static String text(Map<String, Object> object, String name) {
        return object.get(name) instanceof String text ? text : "";
    }

    /** The number in a field; 0 if there is none. */
    static long number(Map<String, Object> object, String name) {
        return object.get(name) instanceof Number number ? number.longValue() : 0;
    }

    /** The objects in a field that is an array; none if it is not. */
    @SuppressWarnings("unchecked")
    static List<Map<String, Object>> objects(Map<String, Object> object, String name) {
        List<Map<String, Object>> found = new ArrayList<>();
        if (object.get(name) instanceof List<?> values) {
            for (Object value : values) if (value instanceof Map) found.add((Map<String, Object>) value);
        }
        return found;
    }
}
